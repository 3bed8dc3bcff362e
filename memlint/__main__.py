"""``python -m memlint``."""

from __future__ import annotations

from memlint.cli.plain import main

if __name__ == "__main__":
    main()
