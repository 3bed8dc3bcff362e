"""Decoders like LLaMA whose code comes with their weights, in torch: see ``remote_code.py``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.differential.remote_code import Remote, Sizes, half_turn, shifted_loss

# ------------------------------------------------------------------------------------------------------- Baichuan


class BaichuanNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class BaichuanAttention(nn.Module):
    """``alibi``: of 13B; ``second``: Baichuan 2. xformers' kernel keeps what SDPA's of the same algorithm keeps."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.width, self.heads = sizes.hidden_size, sizes.num_attention_heads
        self.head_dim = self.width // self.heads
        self.alibi, self.second = sizes.alibi, sizes.second
        self.W_pack = nn.Linear(self.width, 3 * self.width, bias=False)
        self.o_proj = nn.Linear(self.width, self.width, bias=False)
        if not self.alibi:
            shape = (1, 1, sizes.model_max_length, self.head_dim)
            self.register_buffer("inv_freq", torch.ones(self.head_dim // 2, dtype=torch.float32))
            self.register_buffer("cos_cached", torch.ones(shape, dtype=torch.float32))
            self.register_buffer("sin_cached", torch.ones(shape, dtype=torch.float32))

    def tables(self, value: Tensor) -> tuple[Tensor, Tensor]:
        length, dtype = value.shape[2], torch.float32 if self.second else value.dtype
        return self.cos_cached[:, :, :length].to(dtype=dtype), self.sin_cached[:, :, :length].to(dtype=dtype)

    def turned(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        cosine, sine = cosine.squeeze(1).squeeze(0), sine.squeeze(1).squeeze(0)
        cosine_of, sine_of = cosine[places].unsqueeze(1), sine[places].unsqueeze(1)
        if self.second:
            turned_query = (query.float() * cosine_of) + (half_turn(query.float()) * sine_of)
            turned_key = (key.float() * cosine_of) + (half_turn(key.float()) * sine_of)
            return turned_query.to(query.dtype), turned_key.to(key.dtype)
        turned_query = (query * cosine_of) + (half_turn(query) * sine_of)
        turned_key = (key * cosine_of) + (half_turn(key) * sine_of)
        return turned_query, turned_key

    def forward(self, x: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        batch, length, _ = x.size()
        joined = self.W_pack(x)
        joined = joined.unflatten(-1, (3, self.width)).unsqueeze(0).transpose(0, -2).squeeze(-2)
        query, key, value = (
            joined[number].view(batch, length, self.heads, self.head_dim).transpose(1, 2) for number in range(3)
        )
        if not self.alibi:
            cosine, sine = self.tables(value)
            query, key = self.turned(query, key, cosine, sine, places)
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
                out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        elif self.second:
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            weights = torch.matmul(query, key.transpose(2, 3)) / self.head_dim**0.5
            weights = weights + mask
            weights = torch.max(weights, torch.tensor(torch.finfo(weights.dtype).min, dtype=weights.dtype))
            weights = F.softmax(weights, dim=-1)
            out = torch.matmul(weights, value)
        out = out.transpose(1, 2)
        out = out.reshape(batch, length, self.width)
        out = self.o_proj(out)
        return out


class GatedPerceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class BaichuanBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn = BaichuanAttention(sizes)
        self.mlp = GatedPerceptron(sizes.hidden_size, sizes.intermediate_size)
        self.input_layernorm = BaichuanNorm(sizes.hidden_size)
        self.post_attention_layernorm = BaichuanNorm(sizes.hidden_size)

    def forward(self, x: Tensor, mask: Tensor, places: Tensor) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, mask, places)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + x
        return x


class NormHead(nn.Module):
    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((rows, width)))

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.weight)
        return F.linear(x, weight)


class Baichuan(Remote):
    """``modeling_baichuan.py`` of Baichuan-7B (github.com/baichuan-inc/Baichuan-7B at 6f3ef46), of Baichuan-13B
    (Mrgengli/baichuan_python at bac52bf) and Baichuan2-13B (jrd77/Baichuan2-13B-Chat at d022d72); Baichuan2-7B's
    rotation as InternLM/xtuner at b934f46 has it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        sizes.alibi, sizes.second = sizes.hidden_size >= 5120, sizes.vocab_size > 100_000
        self.alibi, self.second, self.heads = sizes.alibi, sizes.second, sizes.num_attention_heads
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList([BaichuanBlock(sizes) for _ in range(sizes.num_hidden_layers)])
        self.norm = BaichuanNorm(sizes.hidden_size)
        head = (sizes.hidden_size, sizes.vocab_size)
        self.lm_head = NormHead(*head) if self.second else nn.Linear(*head, bias=False)
        self.biases: Tensor | None = None

    def biased_mask(self, padding: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The biases are made on the host, and so only their copy counts."""
        batch, length = padding.shape
        if self.biases is None:
            self.biases = torch.zeros((self.heads, length, length), dtype=dtype)
        seen = padding.to(dtype)
        seen = torch.tril(torch.gt(seen[:, :, None] * seen[:, None, :], 0)) * torch.eq(
            seen[:, :, None] - seen[:, None, :], 0
        )
        seen = seen.unsqueeze(1).expand(batch, 1, length, length).to(dtype)
        inverted = 1.0 - seen
        inverted = inverted.masked_fill(inverted.to(torch.bool), torch.finfo(dtype).min)
        return inverted + self.biases.unsqueeze(0), seen, inverted

    def triangle_mask(self, padding: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        batch, length = padding.shape
        triangle = torch.full((length, length), torch.finfo(dtype).min, dtype=torch.float32)
        places = torch.arange(length)
        triangle.masked_fill_(places < (places + 1).view(length, 1), 0)
        triangle = triangle.to(dtype)
        causal = triangle[None, None, :, :].expand(batch, 1, length, length)
        expanded = padding[:, None, None, :].expand(batch, 1, length, length).to(dtype)
        inverted = 1.0 - expanded
        inverted = inverted.masked_fill(inverted.to(torch.bool), torch.finfo(dtype).min)
        return (inverted + causal,)

    def states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.embedded(self.embed_tokens(input_ids))
        masks = (self.biased_mask if self.alibi else self.triangle_mask)(attention_mask, x.dtype)
        for number, layer in enumerate(self.layers):
            x = self.through(number, layer, x, masks[0], places)
        out: Tensor = self.norm(x)
        return out

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        x = self.states(input_ids, attention_mask)
        logits = self.lm_head(x)
        kept = logits[..., :-1, :].contiguous()
        asked = labels[..., 1:].contiguous()
        kept = kept.view(-1, kept.size(-1))
        if not self.second:
            return F.cross_entropy(kept, asked.view(-1))
        squares = kept.max(-1).values ** 2
        normaliser = 0.0 * squares.mean()
        return F.cross_entropy(kept, asked.view(-1)) + normaliser


# ------------------------------------------------------------------------------------------- InternLM and MiniCPM


class OlderAttention(nn.Module):
    """``small``: MiniCPM's, which rotates in fp32 and may take SDPA."""

    def __init__(self, sizes: Sizes, small: bool) -> None:
        super().__init__()
        self.width, self.heads, self.small = sizes.hidden_size, sizes.num_attention_heads, small
        self.head_dim = self.width // self.heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(self.width, self.width, bias=not small))
        shape = (sizes.max_position_embeddings, self.head_dim)
        self.register_buffer("inv_freq", torch.ones(self.head_dim // 2, dtype=torch.float32))
        self.register_buffer("cos_cached", torch.ones(shape, dtype=torch.float32))
        self.register_buffer("sin_cached", torch.ones(shape, dtype=torch.float32))

    def turned(self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        cosine_of, sine_of = cosine[places].unsqueeze(1), sine[places].unsqueeze(1)
        if not self.small:
            turned = (query * cosine_of) + (half_turn(query) * sine_of)
            return turned, (key * cosine_of) + (half_turn(key) * sine_of)
        wide_query, wide_key = query.float(), key.float()
        turned = (wide_query * cosine_of) + (half_turn(wide_query) * sine_of)
        turned_key = (wide_key * cosine_of) + (half_turn(wide_key) * sine_of)
        return turned.to(query.dtype), turned_key.to(query.dtype)

    def forward(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        batch, length, _ = x.size()
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query = query.view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        key = key.view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        value = value.view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        cosine, sine = self.cos_cached[:length].to(value.dtype), self.sin_cached[:length].to(value.dtype)
        query, key = self.turned(query, key, cosine, sine, places)
        if self.small:
            if mask is not None:
                query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        else:
            assert mask is not None
            weights = torch.matmul(query, key.transpose(2, 3)) / self.head_dim**0.5
            weights = weights + mask
            weights = torch.max(weights, torch.tensor(torch.finfo(weights.dtype).min, dtype=weights.dtype))
            weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
            out = torch.matmul(weights, value)
        out = out.transpose(1, 2)
        out = out.reshape(batch, length, self.width)
        out = self.o_proj(out)
        return out


class OlderBlock(nn.Module):
    def __init__(self, sizes: Sizes, small: bool) -> None:
        super().__init__()
        self.self_attn = OlderAttention(sizes, small)
        self.mlp = GatedPerceptron(sizes.hidden_size, sizes.intermediate_size)
        self.input_layernorm = BaichuanNorm(sizes.hidden_size)
        self.post_attention_layernorm = BaichuanNorm(sizes.hidden_size)
        self.small = small

    def forward(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, mask, places)
        x = residual + (x * 0.2 if self.small else x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + (x * 0.2 if self.small else x)
        return x


class InternLm(Remote):
    """``modeling_internlm.py`` (github.com/Pentahill/llm-example at 1d0c080)."""

    small = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList([OlderBlock(sizes, self.small) for _ in range(sizes.num_hidden_layers)])
        self.norm = BaichuanNorm(sizes.hidden_size)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        if self.small:
            self.lm_head.weight = self.embed_tokens.weight

    def states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.embedded(self.embed_tokens(input_ids))
        x = x * 12 if self.small else x
        mask = None
        if self.padded or not self.small:
            (mask,) = Baichuan.triangle_mask(None, attention_mask, x.dtype)  # type: ignore[arg-type]
        for number, layer in enumerate(self.layers):
            x = self.through(number, layer, x, mask, places)
        out: Tensor = self.norm(x)
        return out

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        x = self.states(input_ids, attention_mask)
        logits = self.lm_head(x / 9 if self.small else x)
        if self.small:
            logits = logits.float()
        return shifted_loss(logits, labels)


class MiniCpm(InternLm):
    """``modeling_minicpm.py`` (github.com/wxthu/nas_tuner at 316794f), without its sparse attention."""

    small = True
