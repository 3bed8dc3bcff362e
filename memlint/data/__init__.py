"""Catalogues: cards and their usable memory, measured overheads, with sources."""
