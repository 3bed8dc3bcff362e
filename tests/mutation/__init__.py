"""Mutation testing of one module: ``python -m tests.mutation memlint.fixes.levers``."""
