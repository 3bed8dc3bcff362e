import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.heads = config.n_head

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(x.shape))


class GPTConfig:
    block_size: int = 128
    vocab_size: int = 1024
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 128


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(config.vocab_size, config.n_embd)})
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight


total_batch_size = 4096
B = 8
T = 128
grad_accum_steps = total_batch_size // (B * T)
use_compile, use_fused = False, True
model = GPT(GPTConfig(vocab_size=1088))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=use_fused)
for _ in range(grad_accum_steps):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits, loss = model(torch.zeros(B, T, dtype=torch.int64), None)
    loss = loss / grad_accum_steps
    loss.backward()
