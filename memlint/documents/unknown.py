"""What reading cannot tell."""

from __future__ import annotations


class Unknown(Exception):
    """The value cannot be known statically; the message says why."""
