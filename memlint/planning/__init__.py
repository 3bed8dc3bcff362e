"""What a model takes by method, card and number of devices, before anybody has a config; and a config to begin with."""
