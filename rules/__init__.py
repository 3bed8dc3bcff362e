"""The built-in rules: one file per risk, named after its code."""
