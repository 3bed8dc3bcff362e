"""Measured tapes: the only folder that imports torch or JAX."""
