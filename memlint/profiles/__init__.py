"""Recorded profiles: a traced training step with its sizes as formulas, evaluated without PyTorch."""
