uv run automodel recipe.yaml --nproc-per-node 8
