"""Eager PyTorch's memory without PyTorch: shape-only tensors that write a tape."""
