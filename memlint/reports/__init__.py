"""Findings -> Report: one file per output format."""
