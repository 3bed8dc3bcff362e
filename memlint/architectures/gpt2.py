"""GPT-2 as the small trainers that grew from it state it: nanoGPT and llm.c.

Both name the published sizes by OpenAI's names, and write the layer anew. Sources: nanoGPT, ``model.py``
(``GPTConfig``, ``from_pretrained``); llm.c, ``train_gpt2.py`` and ``train_gpt2.cu`` (``gpt2_set_hyperparameters``,
``gpt3_set_hyperparameters``).
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import UnknownModel

# OpenAI's names -> (layers, heads, width); of each the vocabulary, and the tokens that it was made for.
PUBLISHED = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
ROWS, POSITIONS = 50257, 1024
PADDED = 50304  # rows in multiples of 64 and of 128 alike


def gpt2(
    layers: int,
    heads: int,
    width: int,
    positions: int,
    vocabulary: int,
    *,
    bias: bool = True,
    dropout: float = 0.0,
    activation: str = "gelu",
) -> Decoder:
    """A table of learned positions, one product for queries, keys and values, a perceptron four times as wide.

    bias        of every product and norm
    dropout     of attention, of what each block adds, and of what is embedded
    activation  "gelu" is torch's kernel, "gelu_new" the formula written out
    """
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        head_dim=width // max(heads, 1),
        intermediate=4 * width,
        tied=True,
        norm="layer" if bias else "layer_weight",
        projection="thirds",
        qkv_bias=bias,
        output_bias=bias,
        output_name="c_proj",
        rotary="none",
        perceptron="c_fc c_proj",
        perceptron_bias=bias,
        activation=activation,
        positions=positions,
        context=positions,
        attention_dropout=dropout,
        residual_dropout=dropout,
        embedding_dropout=dropout,
        plain_softmax=True,
    )


# What --model of train_gpt2.py says beside the published names.
_TWINS = {"d12": "gpt2", "d24": "gpt2-medium", "d36": "gpt2-large", "d48": "gpt2-xl"}
# Of train_gpt2cu: GPT-2's depth -> (width, heads), GPT-3's width -> (depth, width of a head), and what is in the names
# of the files of weights that train_gpt2.py writes -> their depth.
_DEPTHS = {
    **{6: (384, 6), 12: (768, 12), 24: (1024, 16), 36: (1280, 20), 48: (1600, 25), 60: (1920, 30)},
    **{72: (2880, 30), 84: (3456, 36)},
}
_CHANNELS = {
    **{384: (6, 64), 768: (12, 64), 1024: (24, 64), 1536: (24, 96), 2048: (24, 128), 2560: (32, 80)},
    **{4096: (32, 128), 5140: (40, 128), 12288: (96, 128)},
}
_FILES = {"124M": 12, "355M": 24, "774M": 36, "1558M": 48}


def twin(name: str) -> Decoder:
    """What ``--model`` of llm.c's train_gpt2.py says. Raises UnknownModel for a name that it does not know."""
    published = _TWINS.get(name, name)
    if published not in PUBLISHED:
        raise UnknownModel(f"--model {name}: no size of train_gpt2.py's")
    return gpt2(*PUBLISHED[published], POSITIONS, ROWS, activation="gelu_new")


def descriptor(name: str) -> Decoder:
    """What ``-e`` of llm.c's train_gpt2cu says: ``d12``, ``gpt3:c768``, or a file that says its size in its name.

    Raises UnknownModel where the sizes are in the file alone.
    """
    kind, _, width = name.rpartition(":c")
    if kind == "gpt3" and width.isdigit() and int(width) in _CHANNELS:
        channels, (layers, head) = int(width), _CHANNELS[int(width)]
        return gpt2(layers, channels // head, channels, 2 * POSITIONS, PADDED)
    number, file = name.rpartition(":")[2].removeprefix("d"), name.rsplit("/", 1)[-1]
    depth = int(number) if number.isdigit() else next((n for part, n in _FILES.items() if part in file), 0)
    if depth not in _DEPTHS:
        raise UnknownModel(f"-e {name}: the sizes of the model are in that file")
    channels, heads = _DEPTHS[depth]
    return gpt2(depth, heads, channels, POSITIONS, PADDED)
