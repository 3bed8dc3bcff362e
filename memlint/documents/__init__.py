"""text -> Document: YAML, JSON, TOML, shell and Python config modules as trees of nodes with spans."""
