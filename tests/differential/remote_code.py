"""Decoders whose code comes with their weights, in torch: what that code computes, in this project's own words.

Each class names the file that it follows. Only what training needs is here: no caches, no generation.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Sizes = SimpleNamespace


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    kept = logits[..., :-1, :].contiguous()
    asked = labels[..., 1:].contiguous()
    return F.cross_entropy(kept.view(-1, kept.size(-1)), asked.view(-1))


def half_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Remote(nn.Module):
    """``every``: one layer of so many is recomputed; ``reentrant``: by the older of torch's ways."""

    reentrant = True

    def __init__(self) -> None:
        super().__init__()
        self.every = 0
        self.padded = False

    def through(self, number: int, layer: nn.Module, x: Tensor, *given: Any) -> Tensor:
        if self.every and number % self.every == 0:
            out: Tensor = checkpoint(layer, x, *given, use_reentrant=self.reentrant)
            return out
        own: Tensor = layer(x, *given)
        return own

    def embedded(self, made: Tensor) -> Tensor:
        if self.every and not made.requires_grad:
            made.requires_grad_()
        return made


# ----------------------------------------------------------------------------------------------------------- Qwen


class QwenNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def scaled(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        out = self.scaled(x.float()).type_as(x)
        return out * self.weight


def qwen_rotated(x: Tensor, tables: list[Tensor]) -> Tensor:
    cosine, sine = tables
    size = cosine.shape[-1]
    wide = x.float()
    part, rest = wide[..., :size], wide[..., size:]
    part = (part * cosine) + (half_turn(part) * sine)
    return torch.cat((part, rest), dim=-1).type_as(x)


class QwenAttention(nn.Module):
    """Without flash-attn, on torch 2: SDPA under a mask that is made in every layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.width = sizes.num_attention_heads, sizes.hidden_size
        self.head_dim = self.width // self.heads
        self.c_attn = nn.Linear(self.width, 3 * self.width)
        self.c_proj = nn.Linear(self.width, self.width, bias=False)
        self.register_buffer("masked_bias", torch.tensor(-1e4, dtype=self.c_proj.weight.dtype))
        self.register_buffer("logn_tensor", torch.ones(1, 32767, 1, 1, dtype=self.c_proj.weight.dtype))

    def forward(self, x: Tensor, tables: list[Tensor], mask: Tensor) -> Tensor:
        joined = self.c_attn(x)
        query, key, value = joined.split(self.width, dim=2)
        shape = (*query.shape[:-1], self.heads, self.head_dim)
        query, key, value = query.view(shape), key.view(shape), value.view(shape)
        query = qwen_rotated(query, tables)
        key = qwen_rotated(key, tables)
        length = key.size(1)
        triangle = torch.tril(torch.ones((length, length), dtype=torch.bool)).view(1, 1, length, length)
        query, key, value = query.permute(0, 2, 1, 3), key.permute(0, 2, 1, 3), value.permute(0, 2, 1, 3)
        mask = mask.expand(-1, -1, length, -1)
        mask = mask.masked_fill(~triangle, torch.finfo(query.dtype).min)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
        context = attended.contiguous().view(*shape[:-2], self.width)
        out: Tensor = self.c_proj(context)
        return out


class QwenPerceptron(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        inner = sizes.intermediate_size // 2
        self.w1 = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.w2 = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.c_proj = nn.Linear(inner, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        first = self.w1(x)
        second = self.w2(x)
        inner = first * F.silu(second)
        out: Tensor = self.c_proj(inner)
        return out


class QwenBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = QwenNorm(sizes.hidden_size), QwenNorm(sizes.hidden_size)
        self.attn, self.mlp = QwenAttention(sizes), QwenPerceptron(sizes)

    def forward(self, x: Tensor, tables: list[Tensor], mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        attended = self.attn(normed, tables, mask)
        added = attended + x
        normed = self.ln_2(added)
        fed = self.mlp(normed)
        out: Tensor = added + fed
        return out


class Qwen(Remote):
    """Qwen/Qwen-7B, ``modeling_qwen.py`` (github.com/zhangningboo/Qwen-7B at ffe04dd)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.wte = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.h = nn.ModuleList([QwenBlock(sizes) for _ in range(sizes.num_hidden_layers)])
        self.ln_f = QwenNorm(sizes.hidden_size)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.head_dim = sizes.hidden_size // sizes.num_attention_heads
        self.tables: list[Tensor] | None = None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        length = input_ids.shape[1]
        places = torch.arange(length).unsqueeze(0)
        dtype = self.wte.weight.dtype
        mask = attention_mask.view(input_ids.shape[0], -1)[:, None, None, :].to(dtype=dtype)
        mask = (1.0 - mask) * torch.finfo(dtype).min
        x = self.embedded(self.wte(input_ids))
        if self.tables is None:
            frequencies = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
            angles = torch.outer(torch.arange(2 * length).type_as(frequencies), frequencies)
            both = torch.cat((angles, angles), dim=-1)[None, :, None, :]
            self.tables = [both.cos(), both.sin()]
        tables = [table[:, :length] for table in self.tables]
        for number, block in enumerate(self.h):
            x = self.through(number, block, x, tables, mask)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        loss = shifted_loss(logits, labels)
        del places
        return loss


# ---------------------------------------------------------------------------------------------- ChatGLM2, 3 and GLM-4


class GlmNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-5)
        return (self.weight * x).to(dtype)


def glm_rotated(x: Tensor, table: Tensor) -> Tensor:
    """``table`` broadcasts to pairs of the numbers that are rotated."""
    size = table.shape[-2] * 2
    x, rest = x[..., :size], x[..., size:]
    pairs = x.reshape(*x.shape[:-1], size // 2, 2)
    turned = torch.stack(
        [
            pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1],
            pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1],
        ],
        -1,
    )
    turned = turned.flatten(3)
    return torch.cat((turned, rest), dim=-1)


class GlmAttention(nn.Module):
    def __init__(self, sizes: Sizes, tokens_first: bool) -> None:
        super().__init__()
        self.tokens_first = tokens_first
        self.heads, self.groups, self.head_dim = (
            sizes.num_attention_heads,
            sizes.multi_query_group_num,
            sizes.kv_channels,
        )
        self.parts = [self.heads * self.head_dim, self.groups * self.head_dim, self.groups * self.head_dim]
        self.query_key_value = nn.Linear(sizes.hidden_size, sum(self.parts), bias=sizes.add_qkv_bias)
        self.dense = nn.Linear(self.parts[0], sizes.hidden_size, bias=False)

    def spread(self, x: Tensor) -> Tensor:
        times = self.heads // self.groups
        if self.tokens_first:
            x = x.unsqueeze(-2).expand(-1, -1, -1, times, -1)
            return x.contiguous().view((*x.size()[:2], self.heads, self.head_dim))
        x = x.unsqueeze(2).expand(-1, -1, times, -1, -1)
        return x.contiguous().view((*x.size()[:1], self.heads, *x.size()[3:]))

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if self.tokens_first:
            query, key, value = [x.permute(1, 2, 0, 3) for x in (query, key, value)]
        if mask is None:
            context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mask = ~mask
            context = F.scaled_dot_product_attention(query, key, value, mask)
        context = context.permute(2, 0, 1, 3) if self.tokens_first else context.transpose(1, 2)
        return context.reshape((*context.size()[:-2], self.parts[0]))

    def forward(self, x: Tensor, mask: Tensor | None, table: Tensor) -> Tensor:
        joined = self.query_key_value(x)
        query, key, value = joined.split(self.parts, dim=-1)
        query = query.view((*query.size()[:-1], self.heads, self.head_dim))
        key = key.view((*key.size()[:-1], self.groups, self.head_dim))
        value = value.view((*value.size()[:-1], self.groups, self.head_dim))
        if not self.tokens_first:
            query, key, value = [x.transpose(1, 2) for x in (query, key, value)]
        query = glm_rotated(query, table)
        key = glm_rotated(key, table)
        key = self.spread(key)
        value = self.spread(value)
        context = self.core(query, key, value, mask)
        out: Tensor = self.dense(context)
        return out


class GlmPerceptron(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(sizes.hidden_size, 2 * sizes.ffn_hidden_size, bias=False)
        self.dense_4h_to_h = nn.Linear(sizes.ffn_hidden_size, sizes.hidden_size, bias=False)

    @staticmethod
    def gated(x: Tensor) -> Tensor:
        halves = torch.chunk(x, 2, dim=-1)
        return F.silu(halves[0]) * halves[1]

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dense_h_to_4h(x)
        inner = self.gated(inner)
        out: Tensor = self.dense_4h_to_h(inner)
        return out


class GlmBlock(nn.Module):
    def __init__(self, sizes: Sizes, tokens_first: bool) -> None:
        super().__init__()
        self.input_layernorm = GlmNorm(sizes.hidden_size)
        self.self_attention = GlmAttention(sizes, tokens_first)
        self.post_attention_layernorm = GlmNorm(sizes.hidden_size)
        self.mlp = GlmPerceptron(sizes)

    def forward(self, x: Tensor, mask: Tensor | None, table: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.self_attention(normed, mask, table)
        added = F.dropout(attended, p=0.0, training=self.training)
        added = x + added
        normed = self.post_attention_layernorm(added)
        fed = self.mlp(normed)
        out = F.dropout(fed, p=0.0, training=self.training)
        out = added + out
        return out


class Glm(Remote):
    """``modeling_chatglm.py`` beside GLM-4 (github.com/XuRui314/GLM4v-Finetune at 513b75d), and for ``tokens_first``
    beside ChatGLM2 and 3 (github.com/syjjhl/chatglm2-6b at 8fd7fba, zhangbo2008/chatglm3_annotated at 84fba0f)."""

    tokens_first = False
    reentrant = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.padded_vocab_size, sizes.hidden_size)
        blocks = [GlmBlock(sizes, self.tokens_first) for _ in range(sizes.num_layers)]
        self.layers = nn.ModuleList(blocks)
        self.final_layernorm = GlmNorm(sizes.hidden_size)
        self.output_layer = nn.Linear(sizes.hidden_size, sizes.padded_vocab_size, bias=False)
        self.places, self.dim = sizes.seq_length, sizes.kv_channels // 2
        dtype = self.output_layer.weight.dtype
        self.register_buffer("inv_freq", torch.ones(self.dim // 2, dtype=dtype))

    def table(self) -> Tensor:
        theta = 1.0 / (10000 ** (torch.arange(0, self.dim, 2, dtype=torch.float) / self.dim))
        angles = torch.outer(torch.arange(self.places, dtype=torch.float), theta).float()
        pairs = torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1)
        return pairs.to(self.inv_freq.dtype)

    def row_mask(self, input_ids: Tensor, padding: Tensor) -> Tensor:
        batch, length = input_ids.shape
        full = torch.ones(batch, length, length, dtype=torch.float32)
        full.tril_()
        full = full * padding.unsqueeze(1)
        full -= padding.unsqueeze(-1) - 1
        full = (full < 0.5).bool()
        full.unsqueeze_(1)
        return full

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.embedded(self.word_embeddings(input_ids))
        if self.tokens_first:
            x = x.transpose(0, 1).contiguous()
        mask = self.row_mask(input_ids, attention_mask) if self.padded else None
        table = self.table()[None, :length]
        if self.tokens_first:
            table = table.transpose(0, 1).contiguous().view(length, -1, 1, self.dim // 2, 2)
        else:
            table = table.view(-1, 1, length, self.dim // 2, 2)
        for number, layer in enumerate(self.layers):
            x = self.through(number, layer, x, mask, table)
        x = self.final_layernorm(x)
        logits = self.output_layer(x)
        if self.tokens_first:
            logits = logits.transpose(0, 1).contiguous()
        logits = logits.to(torch.float32)
        kept = logits[..., :-1, :].contiguous()
        asked = labels[..., 1:].contiguous()
        loss = F.cross_entropy(kept.view(-1, kept.size(-1)), asked.view(-1))
        logits = logits.to(x.dtype)
        return loss.to(x.dtype)


class TokensFirstGlm(Glm):
    tokens_first = True
    reentrant = True


# ---------------------------------------------------------------------------------------------------- ChatGLM


class FirstGlmAttention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width, self.heads = sizes.hidden_size, sizes.num_attention_heads
        self.head_dim = self.width // self.heads
        self.query_key_value = nn.Linear(self.width, 3 * self.width)
        self.dense = nn.Linear(self.width, self.width)
        self.register_buffer("inv_freq", torch.ones(self.head_dim // 4, dtype=self.dense.weight.dtype))
        self.cached: tuple[Tensor, Tensor] | None = None

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        if self.cached is None:
            angles = torch.einsum("i,j->ij", torch.arange(length, dtype=self.inv_freq.dtype), self.inv_freq)
            both = torch.cat((angles, angles), dim=-1)
            self.cached = (both.cos()[:, None, :], both.sin()[:, None, :])
        return self.cached

    @staticmethod
    def turned(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        cosine = F.embedding(places, cosine.squeeze(1)).unsqueeze(2)
        sine = F.embedding(places, sine.squeeze(1)).unsqueeze(2)
        return (query * cosine) + (half_turn(query) * sine), (key * cosine) + (half_turn(key) * sine)

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        length, batch = key.shape[:2]
        query = query / 8.0
        query = query.view(length, batch * self.heads, -1)
        key = key.view(length, batch * self.heads, -1)
        beside = torch.zeros(1, 1, 1, dtype=query.dtype)
        scores = torch.baddbmm(
            beside, query.transpose(0, 1), key.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=1.0
        ).view(batch, self.heads, length, length)
        (mask == 0).all()
        scores.masked_fill_(mask, -10000.0)
        dtype = scores.dtype
        scores = scores.float()
        scores = scores * 2.0
        weights = F.softmax(scores, dim=-1)
        weights = weights.type(dtype)
        value = value.view(length, batch * self.heads, -1)
        weights = weights.view(batch * self.heads, length, -1)
        context = torch.bmm(weights, value.transpose(0, 1))
        context = context.view(batch, self.heads, length, -1).permute(2, 0, 1, 3).contiguous()
        return context.view(length, batch, self.width), weights

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        joined = self.query_key_value(x)
        joined = joined.view(*joined.shape[:-1], self.heads, 3 * self.head_dim)
        query, key, value = torch.split(joined, self.head_dim, dim=-1)
        first, second = query.chunk(2, dim=-1)
        first_key, second_key = key.chunk(2, dim=-1)
        cosine, sine = self.tables(x.shape[0])
        own, block = places[:, 0, :].transpose(0, 1).contiguous(), places[:, 1, :].transpose(0, 1).contiguous()
        first, first_key = self.turned(first, first_key, cosine, sine, own)
        second, second_key = self.turned(second, second_key, cosine, sine, block)
        query = torch.concat([first, second], dim=-1)
        key = torch.concat([first_key, second_key], dim=-1)
        context, weights = self.core(query, key, value, mask)
        out: Tensor = self.dense(context)
        del weights
        return out


class FirstGlmPerceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(width, inner), nn.Linear(inner, width)

    @staticmethod
    def activated(x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x)))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dense_h_to_4h(x)
        inner = self.activated(inner)
        out: Tensor = self.dense_4h_to_h(inner)
        return out


class FirstGlmBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(sizes.hidden_size)
        self.attention = FirstGlmAttention(sizes)
        self.post_attention_layernorm = nn.LayerNorm(sizes.hidden_size)
        self.mlp = FirstGlmPerceptron(sizes.hidden_size, sizes.inner_hidden_size)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        attended = self.attention(normed, places, mask)
        added = normed * 7.5 + attended
        inner = self.post_attention_layernorm(added)
        fed = self.mlp(inner)
        out: Tensor = inner * 7.5 + fed
        return out


class FirstGlm(Remote):
    """``modeling_chatglm.py`` beside ChatGLM-6B (github.com/greensheng/chatglm-6b at 8b7d335)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList([FirstGlmBlock(sizes) for _ in range(sizes.num_layers)])
        self.final_layernorm = nn.LayerNorm(sizes.hidden_size)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.lm_head.weight = self.word_embeddings.weight

    def states(self, input_ids: Tensor) -> Tensor:
        batch, length = input_ids.shape
        x = self.embedded(self.word_embeddings(input_ids))
        mask = torch.ones((batch, length, length), dtype=torch.float32)
        mask.tril_()
        mask.unsqueeze_(1)
        mask = (mask < 0.5).bool()
        places = torch.zeros((batch, 2, length), dtype=torch.int64)
        x = x.transpose(0, 1)
        for number, layer in enumerate(self.layers):
            x = self.through(number, layer, x, places, mask)
        out: Tensor = self.final_layernorm(x)
        return out

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        x = self.states(input_ids)
        logits = self.lm_head(x).permute(1, 0, 2).contiguous()
        logits = logits.to(torch.float32)
        kept = logits[..., :-1, :].contiguous()
        asked = labels[..., 1:].contiguous()
        loss = F.cross_entropy(kept.view(-1, kept.size(-1)), asked.view(-1))
        logits = logits.to(x.dtype)
        return loss.to(x.dtype)
