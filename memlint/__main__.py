"""``python -m memlint``."""

from memlint.cli.plain import program

if __name__ == "__main__":
    program()
