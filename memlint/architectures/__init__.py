"""What a model is: typed descriptions in the field's terms, and a reader for each place that a model is described in.

Dialects put a description into a run's facts; models are built of it and know nothing of where it came from.
"""
