"""Laws that hold for every family: 25 drawn examples of each, or 2,000 with MEMLINT_LAWS=full."""
