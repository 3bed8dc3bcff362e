"""Document -> TrainingSpec: one config family each, on top of its schema."""
