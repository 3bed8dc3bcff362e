"""What is known of one training run: the vocabulary of facts, and the facts of a run."""
