"""Measurements of memlint itself: its speed, and its figures against a card's."""
