"""Models of nobody's repository, as people write their own: sources that torch runs, and that memlint follows."""

from __future__ import annotations

GPT = """\
import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
from torch.nn import functional as F


def smooth(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Norm(nn.Module):
    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.joined = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.out = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)
        self.config, self.number = config, number
        self.written_out = config.written_out
        if self.written_out:
            square = torch.tril(torch.ones(config.block_size, config.block_size))
            self.register_buffer("mask", square.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        heads, each = self.config.n_head, C // self.config.n_head
        q, k, v = self.joined(x).split(C, dim=2)
        q, k, v = (one.view(B, T, heads, each).transpose(1, 2) for one in (q, k, v))
        if self.written_out:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)) / float(self.number + 1))
            scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            scores = self.drop(F.softmax(scores, dim=-1))
            y = scores @ v
        else:
            p = self.config.dropout if self.training else 0
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.drop(self.out(y))


class Perceptron(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.into = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.outof = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.act = smooth if config.written_out else nn.GELU()

    def forward(self, x):
        x = self.into(x)
        x = self.act(x)
        return self.outof(x)


class Block(nn.Module):
    def __init__(self, config, number):
        super().__init__()
        self.first, self.second = Norm(config.n_embd, bias=config.bias), Norm(config.n_embd, bias=config.bias)
        self.attn = Attention(config, number)
        self.mlp = Perceptron(config)

    def forward(self, x):
        x = x + self.attn(self.first(x))
        x = x + self.mlp(self.second(x))
        return x


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True
    written_out: bool = False
    tie: Optional[bool] = None


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Block(config, number) for number in range(config.n_layer)]),
                ln_f=Norm(config.n_embd, bias=config.bias),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tie is None or config.tie:
            self.transformer.wte.weight = self.lm_head.weight
        self.apply(self._init)
        for name, p in self.named_parameters():
            if name.endswith("outof.weight"):
                torch.nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))
        print("parameters: %.2fM" % (sum(p.numel() for p in self.parameters()) / 1e6,))

    def _init(self, module):
        if isinstance(module, nn.Linear):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss
"""

LLAMA = """\
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Sizes:
    block_size: int = 256
    vocab_size: int = 1000
    n_layer: int = 4
    n_head: int = 8
    n_kv: int = 2
    n_embd: int = 256
    eps: float = 1e-5
    mixed: bool = False

    @property
    def each(self):
        return self.n_embd // self.n_head


class Norm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


def tables(each: int, length: int, base: float = 10000.0):
    speeds = 1.0 / (base ** (torch.arange(0, each, 2)[: each // 2].float() / each))
    angles = torch.outer(torch.arange(length).float(), speeds)
    return torch.cos(angles), torch.sin(angles)


def turned(x, cosine, sine):
    shape = [size if place in (1, x.ndim - 1) else 1 for place, size in enumerate(x.shape)]
    real, imaginary = x.float().reshape(x.shape[:-1] + (-1, 2)).unbind(-1)
    shape[-1] = real.shape[-1]
    c, s = cosine.view(shape), sine.view(shape)
    out = torch.stack([real * c - imaginary * s, real * s + imaginary * c], dim=-1).flatten(3)
    return out.type_as(x)


class Attention(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.q = nn.Linear(sizes.n_embd, sizes.n_head * sizes.each, bias=False)
        self.k = nn.Linear(sizes.n_embd, sizes.n_kv * sizes.each, bias=False)
        self.v = nn.Linear(sizes.n_embd, sizes.n_kv * sizes.each, bias=False)
        self.o = nn.Linear(sizes.n_embd, sizes.n_embd, bias=False)

    def spread(self, x):
        b, t, heads, each = x.shape
        times = self.sizes.n_head // heads
        if times == 1:
            return x
        return x[:, :, :, None, :].expand(b, t, heads, times, each).reshape(b, t, heads * times, each)

    def forward(self, x, cosine, sine):
        b, t, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        q = turned(q.view(b, t, self.sizes.n_head, self.sizes.each), cosine, sine)
        k = turned(k.view(b, t, self.sizes.n_kv, self.sizes.each), cosine, sine)
        k, v = self.spread(k), self.spread(v.view(b, t, self.sizes.n_kv, self.sizes.each))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.o(y.transpose(1, 2).contiguous().view(b, t, -1))


class Gate(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        inner = 64 * ((int(2 * 4 * width / 3) + 63) // 64)
        self.one, self.three = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.two = nn.Linear(inner, width, False)

    def forward(self, x):
        return self.two(F.silu(self.one(x)) * self.three(x))


class Layer(nn.Module):
    def __init__(self, number: int, sizes: Sizes):
        super().__init__()
        self.attention, self.gate = Attention(sizes), Gate(sizes.n_embd)
        self.before, self.between = Norm(sizes.n_embd, eps=sizes.eps), Norm(sizes.n_embd, eps=sizes.eps)

    def forward(self, x, cosine, sine):
        h = x + self.attention.forward(self.before(x), cosine, sine)
        h += self.gate(self.between(h))
        return h


class Model(nn.Module):
    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.embeddings = nn.Embedding(sizes.vocab_size, sizes.n_embd)
        self.layers = nn.ModuleList()
        for number in range(sizes.n_layer):
            self.layers.append(Layer(number, sizes))
        self.norm = Norm(sizes.n_embd)
        self.output = nn.Linear(sizes.n_embd, sizes.vocab_size, bias=False)
        cosine, sine = tables(sizes.each, sizes.block_size)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self.last_loss = None

    def forward(self, tokens, targets=None):
        _, length = tokens.shape
        h = self.embeddings(tokens)
        cosine, sine = self.cosine[:length], self.sine[:length]
        for layer in self.layers:
            h = layer(h, cosine, sine)
        logits = self.output(self.norm(h))
        self.last_loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits
"""

# As nanoGPT's train.py goes about it, up to where it has its model; and how it calls that.
TRAIN = """\
import os
import torch
from model import {config}, {model}

batch_size = 2
block_size = 128
n_layer = 4
n_head = 4
n_embd = 128
dropout = 0.0
bias = False
extra = False
init_from = 'scratch'
dataset = 'ours'
compile = False
exec(open('configurator.py').read())
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    batch_size = batch_size // 2
torch.manual_seed(1)
meta_vocab_size = None
if os.path.exists(os.path.join('data', dataset, 'meta.pkl')):
    meta_vocab_size = read()
model_args = dict(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size, vocab_size=None, {more})
if init_from == 'scratch':
    model_args['vocab_size'] = meta_vocab_size if meta_vocab_size is not None else 50304
    gptconf = {config}(**model_args)
    model = {model}(gptconf)
elif init_from == 'resume':
    model = resumed()
model.to('cuda')
optimizer = model.configure_optimizers(0.1)
for _ in range(10):
    {call}
    loss.backward()
"""
