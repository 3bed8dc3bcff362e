"""Predicted beside measured on one GPU: ``measure.py`` is the program, ``summary.py`` reads its table."""
