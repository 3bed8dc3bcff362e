"""Edits on the original text, and their verification."""
