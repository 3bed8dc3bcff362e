"""A check, file by file and run by run: what :mod:`memlint.check` calls."""
