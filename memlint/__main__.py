"""``python -m memlint``."""

from __future__ import annotations

from memlint.cli.plain import program

if __name__ == "__main__":
    program()
