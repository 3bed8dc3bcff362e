"""The loops that train: what each does whatever family's keys start it, said once, as data."""
