"""nanochat's decoder in torch, from what its releases say of themselves: the layers, and nothing of the program."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlint.models.nanochat import Sizes


class Cast(nn.Linear):
    """Multiplies in the dtype of what it is given."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


def normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


class Block(nn.Module):
    def __init__(self, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.q, self.k, self.v, self.o = (Cast(width, width) for _ in range(4))
        self.up, self.down = Cast(width, 4 * width), Cast(4 * width, width)
        self.gate = Cast(12, sizes.heads) if sizes.has_values(number) else None

    def turn(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return normed(torch.cat([first * cosine + second * sine, first * (-sine) + second * cosine], -1))

    def attend(self, x: Tensor, extra: Tensor | None, cosine: Tensor, sine: Tensor) -> Tensor:
        heads = (*x.shape[:2], self.heads, -1)
        q, k, v = self.q(x).view(*heads), self.k(x).view(*heads), self.v(x).view(*heads)
        if self.gate is not None and extra is not None:
            v = v + (2 * torch.sigmoid(self.gate(x[..., :12])))[..., None] * extra.view(*heads)
        q, k = self.turn(q, cosine, sine), self.turn(k, cosine, sine)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o(out.transpose(1, 2).contiguous().view(x.shape))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, extra: Tensor | None, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attend(normed(x), extra, cosine, sine)
        return x + self.down(F.relu(self.up(normed(x))).square())  # type: ignore[no-any-return]


class Reference(nn.Module):
    def __init__(self, sizes: Sizes, length: int) -> None:
        super().__init__()
        self.sizes = sizes
        half = sizes.width // sizes.heads // 2
        self.tokens = nn.Embedding(sizes.rows, sizes.width, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Block(sizes, number) for number in range(sizes.layers))
        self.head = Cast(sizes.width, sizes.rows)
        if "lambdas" in sizes.features:
            self.scales, self.firsts = (nn.Parameter(torch.ones(sizes.layers)) for _ in range(2))
        if "smear" in sizes.features:
            self.smear, self.smeared, self.back = Cast(24, 1), *(nn.Parameter(torch.ones(1)) for _ in range(2))
        numbers = [number for number in range(sizes.layers) if sizes.has_values(number)]
        self.extra = nn.ModuleDict(
            {str(number): nn.Embedding(sizes.rows, sizes.width, dtype=torch.bfloat16) for number in numbers}
        )
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.ones(1, 10 * length, 1, half, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        length, features = tokens.shape[1], self.sizes.features
        cosine, sine = self.cosine[:, :length], self.sine[:, :length]
        x = normed(self.tokens(tokens))
        if "smear" in features:
            gate = self.smeared.to(x.dtype) * torch.sigmoid(self.smear(x[:, 1:, :24]))
            x = torch.cat([x[:, :1], x[:, 1:] + gate * x[:, :-1]], dim=1)
        first, kept = x, None
        for number, block in enumerate(self.blocks):
            if "lambdas" in features:
                x = self.scales[number] * x + self.firsts[number] * first
            extra = self.extra[str(number)](tokens) if str(number) in self.extra else None
            x = block(x, extra, cosine, sine)
            if number == len(self.blocks) // 2:
                kept = x
        if "smear" in features:
            x = x - self.back.to(x.dtype) * kept
        logits = self.head(normed(x))[..., : self.sizes.vocabulary].float()
        logits = 15 * torch.tanh(logits / 15)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
