"""LLaMA decoders as torchtune, torchtitan and litgpt compute them, in torch: from what those libraries publish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

PIECE = 128  # litgpt's chunked_cross_entropy


class CastNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.normalized_shape, self.weight, self.eps).to(x.dtype)


class RoundedNorm(nn.RMSNorm):
    """torchtune's before 0.5 and after 0.6."""

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        normed = (x_fp32 * torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)
        return normed * self.weight


class ScaledNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        mean_square = torch.mean(x * x, dim=-1, keepdim=True)
        normed = x * torch.rsqrt(mean_square + 1e-6)
        return (normed * self.weight.float()).to(dtype=dtype)


class Rotation(nn.Module):
    """Pairs of neighbours in fp32, by one table for all layers."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(positions, width // 2, 2, dtype=torch.float32))

    def forward(self, x: Tensor, places: Tensor | None) -> Tensor:
        table = self.table[: x.size(1)] if places is None else self.table[places]
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        table = table.view(-1, pairs.size(1), 1, pairs.size(3), 2)
        cosine, sine = table[..., 0], table[..., 1]
        turned = torch.stack(
            [pairs[..., 0] * cosine - pairs[..., 1] * sine, pairs[..., 1] * cosine + pairs[..., 0] * sine], -1
        )
        turned = turned.flatten(3)
        return turned.type_as(x)


def spread(x: Tensor, times: int, dim: int) -> Tensor:
    """Each entry of a dimension several times."""
    if times == 1:
        return x
    shape = list(x.shape)
    shape.insert(dim + 1, times)
    return x.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1)


def turn_half(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = x.size(-1) // 2
    left, right = x[..., :half], x[..., half:]
    crossed = torch.cat((-right, left), dim=-1)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    turned = (x * cosine) + (crossed * sine)
    return turned.to(dtype=x.dtype)


class Perceptron(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads, keys = (config[n] for n in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
        self.head, self.groups = width // heads, heads // keys
        self.sizes = [heads * self.head, keys * self.head, keys * self.head]
        self.make(width)
        self.o = nn.Linear(width, width, bias=False)

    def make(self, width: int) -> None:
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for size in self.sizes)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class TorchtuneAttention(Attention):
    def forward(self, x: Tensor, rotation: Rotation, places: Tensor | None) -> Tensor:
        b, s, _ = x.shape
        q = self.q(x)
        q = q.view(b, s, -1, self.head)
        q = rotation(q, places)
        q = q.transpose(1, 2)
        k = self.k(x)
        v = self.v(x)
        k = k.view(b, s, -1, self.head)
        v = v.view(b, s, -1, self.head)
        k = rotation(k, places)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        k = spread(k, self.groups, 1)
        v = spread(v, self.groups, 1)
        out = self.attend(q, k, v)
        out = out.transpose(1, 2).contiguous().view(b, s, -1)
        return self.o(out)  # type: ignore[no-any-return]


class HalvesRotation(nn.Module):
    """Halves of a head, by one table for all layers: torchtune's of Qwen."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(positions, 2 * width, dtype=torch.float32))

    def forward(self, x: Tensor, places: Tensor | None) -> Tensor:
        table = self.table[: x.size(1)] if places is None else self.table[places]
        table = table.view(-1, x.size(1), 1, 2 * x.size(-1))
        cosine, sine = table[..., : x.size(-1)].to(x.dtype), table[..., x.size(-1) :].to(x.dtype)
        half = x.size(-1) // 2
        left, right = x[..., :half], x[..., half:]
        crossed = torch.cat((-right, left), dim=-1)
        return ((x * cosine) + (crossed * sine)).type_as(x)


class TorchtuneNormedAttention(Attention):
    """Qwen 3's: queries and keys are normed before they are rotated."""

    def make(self, width: int) -> None:
        super().make(width)
        self.q_norm, self.k_norm = RoundedNorm(self.head), RoundedNorm(self.head)

    def forward(self, x: Tensor, rotation: HalvesRotation, places: Tensor | None) -> Tensor:
        b, s, _ = x.shape
        q = self.q(x)
        q = q.view(b, s, -1, self.head)
        q = q.transpose(1, 2)
        q = self.q_norm(q)
        q = q.transpose(1, 2)
        q = rotation(q, places)
        q = q.transpose(1, 2)
        k = self.k(x)
        v = self.v(x)
        k = k.view(b, s, -1, self.head)
        v = v.view(b, s, -1, self.head)
        k = k.transpose(1, 2)
        k = self.k_norm(k)
        k = k.transpose(1, 2)
        k = rotation(k, places)
        k = k.transpose(1, 2)
        v = v.transpose(1, 2)
        k, v = spread(k, self.groups, 1), spread(v, self.groups, 1)
        out = self.attend(q, k, v)
        out = out.transpose(1, 2).contiguous().view(b, s, -1)
        return self.o(out)  # type: ignore[no-any-return]


class TorchtitanAttention(Attention):
    def thirds(self, x: Tensor) -> Any:
        b, s, _ = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (y.view(b, s, -1, self.head) for y in (q, k, v))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = self.thirds(x)
        q, k = self.turn(q, k, table)
        keys, values = spread(k, self.groups, 2), spread(v, self.groups, 2)
        q = q.transpose(1, 2)
        k = keys.transpose(1, 2)
        v = values.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).contiguous()
        out = out.view(b, s, -1)
        return self.o(out)  # type: ignore[no-any-return]

    @staticmethod
    def turn(q: Tensor, k: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        complex_q = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        complex_k = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
        table = table[: q.size(1)].view(1, q.size(1), 1, -1)
        turned_q = torch.view_as_real(complex_q * table).flatten(3)
        turned_k = torch.view_as_real(complex_k * table).flatten(3)
        return turned_q.type_as(q), turned_k.type_as(k)


class TorchtitanJoinedAttention(TorchtitanAttention):
    """torchtitan 0.3's: one product, of which each third gets a copy. Heads of keys are as many as of queries."""

    def make(self, width: int) -> None:
        self.qkv = nn.Linear(width, sum(self.sizes), bias=False)

    def thirds(self, x: Tensor) -> Any:
        b, s, _ = x.shape
        y = self.qkv(x).view(b, s, -1, self.groups + 2, self.head)
        return (part.reshape(b, s, -1, self.head).contiguous() for part in y.split([self.groups, 1, 1], dim=-2))


class LitgptAttention(Attention):
    def make(self, width: int) -> None:
        self.qkv = nn.Linear(width, sum(self.sizes), bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        b, s, _ = x.shape
        qkv = self.qkv(x)
        q, k, v = qkv.split(self.sizes, dim=-1)
        q, k, v = (y.view(b, s, -1, self.head) for y in (q, k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        turned_q = turn_half(q[..., : self.head], cosine, sine)
        turned_k = turn_half(k[..., : self.head], cosine, sine)
        q = torch.cat((turned_q, q[..., self.head :]), dim=-1)
        k = torch.cat((turned_k, k[..., self.head :]), dim=-1)
        if self.groups > 1:
            k = k.repeat_interleave(self.groups, dim=1)
            v = v.repeat_interleave(self.groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        out = out.reshape(b, s, -1)
        return self.o(out)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any], name: str) -> None:
        super().__init__()
        attention = {"torchtune": TorchtuneAttention, "torchtitan": TorchtitanAttention, "litgpt": LitgptAttention}
        width = config["hidden_size"]
        self.before, self.between = make_norm(name, width), make_norm(name, width)
        self.attention = attention[name](config)
        self.perceptron = Perceptron(width, config["intermediate_size"])


class TorchtuneLayer(Layer):
    def forward(self, x: Tensor, *where: Any) -> Tensor:
        h = self.before(x)
        attended = self.attention(h, *where)
        h = attended + x
        fed = self.perceptron(self.between(h))
        return h + fed


class TorchtitanLayer(Layer):
    def forward(self, x: Tensor, *where: Any) -> Tensor:
        h = x + self.attention(self.before(x), *where)
        return h + self.perceptron(self.between(h))


class LitgptLayer(Layer):
    def forward(self, x: Tensor, *where: Any) -> Tensor:
        normed = self.before(x)
        attended = self.attention(normed, *where)
        x = attended + x
        normed = self.between(x)
        return self.perceptron(normed) + x


LAYERS = {"torchtune": TorchtuneLayer, "torchtitan": TorchtitanLayer, "litgpt": LitgptLayer}


def make_norm(name: str, width: int) -> nn.Module:
    return {"torchtune": CastNorm, "torchtitan": nn.RMSNorm, "litgpt": ScaledNorm}[name](width, eps=1e-5)


def every_other_product() -> Any:
    """torchtitan's policy for the products; that for attention needs a GPU's kernels to show."""
    counts = {True: 0, False: 0}

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> bool:
        if operation is not torch.ops.aten.mm.default:
            return False
        counts[context.is_recompute] += 1
        return counts[context.is_recompute] % 2 == 1

    return create_selective_checkpoint_contexts(policy)


class Decoder(nn.Module):
    """``every``: of so many layers one is recomputed; 0 for none. ``selective``: it keeps every other product."""

    def __init__(
        self, name: str, config: dict[str, Any], positions: int, every: int, selective: bool, chunks: int
    ) -> None:
        super().__init__()
        width, head = config["hidden_size"], config["hidden_size"] // config["num_attention_heads"]
        self.name, self.every, self.selective, self.chunks = name, every, selective, chunks
        self.embedding = nn.Embedding(config["vocab_size"], width)
        self.layers = nn.ModuleList(LAYERS[name](config, name) for _ in range(config["num_hidden_layers"]))
        self.norm = make_norm(name, width)
        self.head = nn.Linear(width, config["vocab_size"], bias=False)
        if name == "torchtune":
            self.rotation = Rotation(positions, head)
        elif name == "torchtitan":
            self.register_buffer("table", torch.empty(positions, head // 2, dtype=torch.complex64))
        else:
            for half in ("cosine", "sine"):
                self.register_buffer(half, torch.empty(positions, head, dtype=torch.float32))

    def where(self, tokens: Tensor, places: Tensor | None) -> tuple[Any, ...]:
        if self.name == "torchtune":
            return self.rotation, places
        if self.name == "torchtitan":
            return (self.table,)
        length = tokens.size(1)
        return self.cosine[:length].unsqueeze(0), self.sine[:length].unsqueeze(0)

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Any:
        x = self.hidden(tokens, places)
        if not self.chunks:
            return self.head(x).float() if self.name == "torchtune" else self.head(x)
        pieces = x.split(PIECE, dim=1) if self.name == "litgpt" else x.chunk(self.chunks, dim=1)
        return [self.head(piece) for piece in pieces]

    def hidden(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        where = self.where(tokens, places)
        x = self.embedding(tokens)
        options: dict[str, Any] = {"context_fn": every_other_product} if self.selective else {}
        for number, layer in enumerate(self.layers):
            if self.every and (number + 1) % self.every == 0:
                x = checkpoint(layer, x, *where, use_reentrant=False, preserve_rng_state=False, **options)
            else:
                x = layer(x, *where)
        return self.norm(x)  # type: ignore[no-any-return]


def torchtune_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    labels = batch["labels"]
    logits = model(batch["tokens"], batch["places"])
    labels = torch.hstack((labels[..., 1:], labels[..., :1]))
    if isinstance(logits, list):
        flat = [piece.reshape(-1, piece.size(-1)) for piece in logits]
        total: Any = 0.0
        for piece, target in zip(flat, [piece.reshape(-1) for piece in labels.chunk(len(flat), dim=1)]):
            total += F.cross_entropy(piece.float(), target, reduction="sum")
        loss = total / 2
    else:
        labels = labels.reshape(-1)
        logits = logits.reshape(-1, logits.size(-1))
        loss = F.cross_entropy(logits, labels)
    del logits
    return loss  # type: ignore[no-any-return]


def torchtitan_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    prediction = model(batch["tokens"])
    loss = F.cross_entropy(prediction.flatten(0, 1).float(), batch["labels"].flatten(0, 1))
    del prediction
    return loss


def litgpt_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    model.loop = logits = model(batch["tokens"])  # a name that the training loop binds anew in the next step
    targets = batch["labels"][..., 1:]
    if isinstance(logits, list):
        logits[-1] = logits[-1][..., :-1, :]
        return pieced([piece.reshape(-1, piece.size(-1)) for piece in logits], targets.split(PIECE, dim=1))
    logits = logits[..., :-1, :]
    logits = logits.reshape(-1, logits.size(-1))
    return pieced(logits.split(PIECE), targets.reshape(-1).split(PIECE))


def litgpt_pretraining_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The data loader has shifted the labels, so that no logits are cut off."""
    model.loop = logits = model(batch["tokens"])
    return pieced(logits.reshape(-1, logits.size(-1)).split(PIECE), batch["labels"].reshape(-1).split(PIECE))


def pieced(logits: Any, targets: Any) -> Tensor:
    pieces = [F.cross_entropy(x, y.reshape(-1), reduction="none") for x, y in zip(logits, targets)]
    return torch.cat(pieces).sum() / 2


LOSSES = {"torchtune": torchtune_loss, "torchtitan": torchtitan_loss, "litgpt": litgpt_loss}


class Immediate(torch.autograd.Function):
    """Hands out gradients that are there already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> Any:  # type: ignore[override]
        return ctx.saved_tensors[0], None, None


def immediate_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """torchtitan 0.3: each chunk's backward pass before the next chunk."""
    hidden = model.hidden(batch["tokens"])
    chunks = [piece.contiguous().detach().requires_grad_() for piece in hidden.chunk(model.chunks, dim=1)]
    labels = [piece.contiguous() for piece in batch["labels"].chunk(model.chunks, dim=1)]
    gathered = torch.zeros_like(hidden, dtype=torch.float32)
    total = hidden.new_zeros((), dtype=torch.float32)
    start = 0
    for piece, target in zip(chunks, labels):
        logits = model.head(piece)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(0, 1), reduction="sum")
        total = total + loss.detach()
        loss.backward()
        stop = start + piece.size(1)
        gathered[:, start:stop].copy_(piece.grad)
        piece.grad = None
        start = stop
    return Immediate.apply(hidden, gathered.to(hidden.dtype), total)  # type: ignore[no-any-return]


def reference(name: str, config: dict[str, Any], setting: Any, packed: bool, selective: bool, chunks: int) -> Any:
    """What tests.differential.training expects of a reference model."""
    longest = config["max_position_embeddings"] if name == "torchtune" else setting.length

    def build_model(_: Any) -> nn.Module:
        saved = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, setting.dtype))
        try:
            return Decoder(name, config, longest, setting.every, selective, chunks).train()
        finally:
            torch.set_default_dtype(saved)

    def make_batch(_: Any) -> dict[str, Tensor | None]:
        made: dict[str, Tensor | None] = {
            key: torch.zeros(setting.rows, setting.length, dtype=torch.int64) for key in ("tokens", "places", "labels")
        }
        if not packed:
            made["unused"], made["places"] = made["places"], None
        return made

    return SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=LOSSES[name])


class NanogptLayer(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        self.drop = nn.Dropout(dropout)

    def attend(self, x: Tensor) -> Tensor:
        b, s, width = x.size()
        q, k, v = self.qkv(x).split(width, dim=2)
        k = k.view(b, s, self.heads, -1).transpose(1, 2)
        q = q.view(b, s, self.heads, -1).transpose(1, 2)
        v = v.view(b, s, self.heads, -1).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate, is_causal=True)
        out = out.transpose(1, 2).contiguous().view(b, s, width)
        return self.drop(self.out(out))  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = F.gelu(x)
        x = self.down(x)
        return self.drop(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class TwinLayer(NanogptLayer):
    """Of llm.c's train_gpt2.py, which writes out its scores and its gelu."""

    def __init__(self, width: int, heads: int, flash: bool, positions: int) -> None:
        super().__init__(width, heads, True, 0.0)
        self.flash = flash
        square = torch.ones(positions, positions).tril()
        self.register_buffer("seen", square.view(1, 1, positions, positions))

    def attend(self, x: Tensor) -> Tensor:
        if self.flash:
            return super().attend(x)
        b, s, width = x.size()
        q, k, v = self.qkv(x).split(width, dim=2)
        k = k.view(b, s, self.heads, -1).transpose(1, 2)
        q = q.view(b, s, self.heads, -1).transpose(1, 2)
        v = v.view(b, s, self.heads, -1).transpose(1, 2)
        scores = (q @ k.transpose(2, 3)) * 0.125
        scores = scores.masked_fill(self.seen[:, :, :s, :s] == 0, float("-inf"))
        scores = F.softmax(scores, dim=3)
        out = scores @ v
        out = out.transpose(1, 2).contiguous().view(b, s, width)
        return self.out(out)  # type: ignore[no-any-return]

    def feed(self, x: Tensor) -> Tensor:
        x = self.up(x)
        x = 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))
        return self.down(x)  # type: ignore[no-any-return]


class Nanogpt(nn.Module):
    def __init__(self, config: dict[str, Any], bias: bool, dropout: float) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.tokens = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["max_position_embeddings"], width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            NanogptLayer(width, config["num_attention_heads"], bias, dropout)
            for _ in range(config["num_hidden_layers"])
        )
        self.norm = nn.LayerNorm(width, bias=bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(tokens.size(1))
        x = self.drop(self.tokens(tokens) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        logits = F.linear(x, self.tokens.weight)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def nanogpt_reference(config: dict[str, Any], setting: Any, bias: bool, dropout: float) -> Any:
    def make_batch(_: Any) -> dict[str, Tensor]:
        names = ("tokens", "mask", "labels")
        return {name: torch.zeros(setting.rows, setting.length, dtype=torch.int64) for name in names}

    def training_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        model.loop, loss = model(batch["tokens"], batch["labels"])
        return loss  # type: ignore[no-any-return]

    return SimpleNamespace(
        build_model=lambda _: Nanogpt(config, bias, dropout).train(), make_batch=make_batch, training_loss=training_loss
    )


def twin_reference(config: dict[str, Any], setting: Any, flash: bool) -> Any:
    made = nanogpt_reference(config, setting, True, 0.0)

    def build_model(_: Any) -> nn.Module:
        model = Nanogpt(config, True, 0.0)
        sizes = config["hidden_size"], config["num_attention_heads"], flash, config["max_position_embeddings"]
        model.layers = nn.ModuleList(TwinLayer(*sizes) for _ in range(config["num_hidden_layers"]))
        return model.train()

    def training_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["tokens"], batch["labels"])[1]  # type: ignore[no-any-return]

    return SimpleNamespace(build_model=build_model, make_batch=made.make_batch, training_loss=training_loss)
