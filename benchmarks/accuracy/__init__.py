"""Predictions held against published, measured peaks, beside what other estimators say."""
