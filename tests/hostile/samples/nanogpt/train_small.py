# a small one, from scratch
out_dir = "out-sample"
dataset = "ours"
batch_size = 8
block_size = 256
gradient_accumulation_steps = 4 * 2
n_layer = 4
n_head = 4
n_embd = 256
dropout = 0.1
max_iters = 500
