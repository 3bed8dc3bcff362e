"""Fuzzing: ``python -m tests.fuzz --target yaml --minutes 10``."""
