"""Keys that a run states and nobody reads, although their names say that they decide about memory.

A family's schema has the keys that are read, and those that are known to change nothing. A program of somebody's own
takes others (``--tensor_parallel_size``, ``--freeze_lm``), and so does a release that is newer than the schema. The
estimate is made without them, which is to be said beside its figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memlint import work
from memlint.dialects.misspelling import known_names
from memlint.dialects.schema import Schema, families, load, properties, released, resolve
from memlint.documents.node import Node
from memlint.facts.spec import TrainingSpec
from memlint.named_tuple import NamedTuple

MOST = 5  # of one run
MAX_DEPTH = 6

SHARING = "how devices share the run"

# Words of a key's name, between underscores -> what it decides. The first that fits is taken.
WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?:^|_)(?:{words})(?:_|$)"), what)
    for words, what in (
        (r"offload(?:ed|ing)?", "what is kept in the host's memory"),
        (
            r"(?:tensor|pipeline|context|sequence|expert|model)_(?:model_)?parallel(?:ism)?|zero_?stage|deepspeed_stage|sharding|fsdp"
            r"|ulysses|ring_attn|ring_attention",
            SHARING,
        ),
        (r"freeze|frozen|unfreeze|freezing|unfrozen", "what trains"),
        (r"recompute|recomputation|remat|activation_checkpointing|checkpoint_activations", "what is computed again"),
        (r"quantize|quantization|quantized|load_in_[48]bits?|[48]bit|fp8|int[48]|nf4", "how weights are stored"),
        (
            r"vision_tower|image_tower|audio_tower|speech_encoder|vision_encoder|audio_encoder",
            "what is beside the model",
        ),
    )
)
_OFF = frozenset(("", "none", "no", "false", "null", "off", "0", "-1"))
_SIZE = re.compile(r"(?:_size|_degree|parallel|parallelism)$")


class Unread(NamedTuple):
    """A key as it is written, with its value, and what its name says that it decides."""

    node: Node
    name: str
    decides: str


def unread(spec: TrainingSpec) -> list[Unread]:
    """Those of a run, in the order of the text, up to a number. Raises OutOfWork."""
    if spec.family not in families():  # a dialect of a plugin's may have no schema
        return []
    schema = load(spec.family)
    found: list[Unread] = []
    for one in _of(spec.root, schema, schema, "", 0):
        is_option = (
            spec.launch is not None and spec.document.format == "shell" and one.node.span.path == spec.document.path
        )
        found.append(one._replace(name=f"--{one.name.lstrip('-')}") if is_option else one)
        if len(found) == MOST:
            break
    return found


def _of(node: Node, schema: Schema | None, root: Schema, above: str, depth: int) -> Iterator[Unread]:
    """``schema``: of this mapping; None below a key that is not known."""
    if not isinstance(node.value, dict) or depth > MAX_DEPTH:
        return
    known = {} if schema is None else known_names(schema, root)
    all_names = released(root) if depth == 0 else frozenset()
    work.spend(1 + len(node.value) // 4, "looking for keys that are not read")
    for name, child in node.value.items():
        plain = str(name).lstrip("-").replace("-", "_")
        own = known.get(str(name), known.get(plain))
        if own is not None or not all_names.isdisjoint((plain, plain.replace(".", "_"))):
            inner = None if own is None else resolve(own, root)
            if inner is not None and properties(inner, root):
                yield from _of(child, inner, root, "", depth + 1)
            continue
        path = f"{above}_{plain}".lower().replace(".", "_").lstrip("_")
        if isinstance(child.value, dict):
            yield from _of(child, None, root, path, depth + 1)
        elif _is_on(child, path):
            decides = next((what for words, what in WORDS if words.search(path) is not None), "")
            if decides:
                yield Unread(child, str(name), decides)


def _is_on(node: Node, name: str) -> bool:
    value = node.plain()
    if value is None or value is False or isinstance(value, (list, float)) or name.startswith(("no_", "not_")):
        return False
    if str(value).lower() in _OFF:
        return False
    return not (str(value) == "1" and value is not True and _SIZE.search(name))


def own_sharing(spec: TrainingSpec) -> str:
    """Why it is not known how devices share the run of a command; "" where nothing unread says so: neither accelerate
    nor a config of DeepSpeed's has a part in a program that is told itself."""
    if spec.launch is None:
        return ""
    one = next((one for one in unread(spec) if one.decides == SHARING), None)
    return "" if one is None else f"{one.name} {one.node.plain()}: the program shares the run in a way of its own"
