"""TrainingSpec -> Tape: architectures written over meta tensors."""
