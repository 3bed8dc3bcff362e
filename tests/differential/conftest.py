"""The differential tests run the same code in torch (fake tensors with CUDA's semantics) and over meta tensors."""
