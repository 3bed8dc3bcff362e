"""Operations over shape-only tensors, by kind: what each allocates, saves for backward, and frees, on CUDA.

Every one is held against torch's own run in ``tests/differential/test_ops.py``, to the byte. What a formula saves is in
``tools/autograd/derivatives.yaml`` of the PyTorch sources. :mod:`memlint.meta.functional` has them by torch's names.
"""
