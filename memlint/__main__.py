"""``python -m memlint``."""

from __future__ import annotations

from memlint.cli.main import main

if __name__ == "__main__":
    main(prog_name="memlint")
