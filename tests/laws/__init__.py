"""Laws that hold for every family: 25 drawn examples of each, 2,000 with MEMLINT_LAWS=full, or as many as it says."""
