XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 uv run scripts/train.py pi05_libero --exp-name=my_experiment --overwrite --fsdp-devices 2
