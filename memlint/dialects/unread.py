"""Keys that a run states and nobody reads, although their names say that they decide about memory.

A family's schema has the keys that are read, and those that are known to change nothing. A program of somebody's own
takes others (``--tensor_parallel_size``, ``--freeze_lm``), and so does a release that is newer than the schema. The
estimate is made without them, which is to be said beside its figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from memlint import work
from memlint.dialects.misspelling import known_names
from memlint.dialects.schema import ANNOTATION, Schema, families, load, properties, released, resolve
from memlint.documents.node import Node, Unresolved
from memlint.facts.spec import OnTop, TrainingSpec
from memlint.named_tuple import NamedTuple

MOST = 5  # of one run
MAX_DEPTH = 6

SHARING = "how devices share the run"
BESIDE = "what is beside the model"
PART = "which part of the model trains"

# Words of a key's name, between underscores -> what it decides. The first that fits is taken.
WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?:^|_)(?:{words})(?:_|$)"), what)
    for words, what in (
        (r"offload(?:ed|ing)?", "what is kept in the host's memory"),
        (
            r"(?:tensor|pipeline|context|sequence|expert|model)_(?:model_)?parallel(?:ism)?|zero_?stage|deepspeed_stage|sharding|fsdp"
            r"|ulysses|ring_attn|ring_attention|ds_(?:file|config|cfg|json)",
            SHARING,
        ),
        # What names the part that trains says that the rest does not, and so does what freezes the model itself.
        (
            r"unfrozen|unfreeze|trainable|spectrum|(?:delta|peft|adapter)_(?:type|method)|peft|(?:use_)?q?lora|lora_(?:config|dim|r|rank)"
            r"|(?:freeze|frozen)_(?:l?lm|model|backbone|decoder|language|base|transformer)",
            PART,
        ),
        (r"freeze|frozen|freezing", "what trains"),
        (r"recompute|recomputation|remat|activation_checkpointing|checkpoint_activations", "what is computed again"),
        (r"quantize|quantization|quantized|load_in_[48]bits?|[48]bit|fp8|int[48]|nf4", "how weights are stored"),
        (r"(?:vision|visual|image|video|audio|speech)_(?:tower|encoder)", BESIDE),
    )
)
_OFF = frozenset(("", "none", "no", "false", "null", "off", "0", "0.0", "-1"))
# Values that say it whatever their key is called (``--train_type lora``, ``--ft_method ptuning``).
_ADAPTED = frozenset(("lora", "qlora", "dora", "adalora", "ia3", "ptuning", "p-tuning", "prefix", "prefix-tuning"))
_SIZE = re.compile(r"(?:_size|_degree|parallel|parallelism)$")


class Unread(NamedTuple):
    """A key as it is written, its value as it is shown, its node, and what its name says that it decides."""

    name: str
    value: str
    node: Node
    decides: str


# The last run asked about: it is derived anew for each what-if, and a rule asks again.
_asked: list[tuple[Node, str, list[Unread]]] = []


def unread(spec: TrainingSpec) -> list[Unread]:
    """Those of a run, in the order of the text, up to a number. Raises OutOfWork."""
    if spec.family not in families():  # a dialect of a plugin's may have no schema
        return []
    if not _asked or _asked[0][0] is not spec.root or _asked[0][1] != spec.family:
        schema = load(spec.family)
        stated = (one for one in _of(spec.root, schema, schema, "", 0) if not _is_a_default(one, spec))
        found = list(islice(stated, MOST))
        _asked[:] = [(spec.root, spec.family, [_as_option(one, spec) for one in found])]
    return _asked[0][2]


def _is_a_default(one: Unread, spec: TrainingSpec) -> bool:
    """Whether nobody chose a key's value: it is of the config that a program has of its own, beneath a command."""
    is_beneath = spec.document.format == "shell" and one.node.span.path.endswith((".yaml", ".yml"))
    return is_beneath and bool(load(spec.family)[ANNOTATION].get("main"))


def _as_option(one: Unread, spec: TrainingSpec) -> Unread:
    """With the dashes that an option has in its command."""
    is_option = spec.document.format == "shell" and one.node.span.path == spec.document.path
    return one._replace(name=f"--{one.name.lstrip('-')}") if is_option and spec.launch is not None else one


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
            if inner is not None and inner.get(ANNOTATION, {}).get("arguments"):
                continue  # whoever makes the class of them has read every one, or the run has no estimate
            if inner is not None and properties(inner, root):
                yield from _of(child, inner, root, "", depth + 1)
            continue
        path = f"{above}_{plain}".lower().replace(".", "_").lstrip("_")
        if isinstance(child.value, dict):
            yield from _of(child, None, root, path, depth + 1)
        elif _is_on(child, path):
            decides = next((what for words, what in WORDS if words.search(path) is not None), "")
            if not decides and str(child.plain()).lower() in _ADAPTED:
                decides = PART
            if decides:
                yield Unread(str(name), _shown(child), child, decides)


def _is_on(node: Node, name: str) -> bool:
    value = node.plain()
    if not value or str(value).lower() in _OFF or name.startswith(("no_", "not_")):
        return False
    return value is True or str(value) != "1" or _SIZE.search(name) is None


def _shown(node: Node) -> str:
    return node.value.text if isinstance(node.value, Unresolved) else str(node.plain())


_OWN_WAYS = {SHARING: "shares the run in a way of its own", PART: "chooses itself which part of the model trains"}


def own_way(spec: TrainingSpec) -> str:
    """Why it is not known how devices share a run of the Trainer's or of TRL's keys, or what of the model trains; ""
    where nothing unread says so. Both libraries leave the sharing to accelerate or DeepSpeed, and train the whole model
    unless it has adapters: they have no keys of their own for either."""
    one = next((one for one in unread(spec) if one.decides in _OWN_WAYS), None)
    if one is None:
        return ""
    why = f"{one.name} {one.value}: the program {_OWN_WAYS[one.decides]}"
    return OnTop(why) if trains_a_part(spec) and not _packs_or_shares(spec) else why


# Weights that are packed take less than they do whole: no bound is sure.
_PACKS = re.compile(r"q-?lora|quant|(?:^|[^0-9a-z])[48]-?bit", re.IGNORECASE)


def _packs_or_shares(spec: TrainingSpec) -> bool:
    """Whether a key that is not read may have weights packed, or shared by devices."""
    names = spec.root.value if isinstance(spec.root.value, dict) else {}
    if any(_PACKS.search(str(name)) is not None for name in names):
        return True
    return any(one.decides == SHARING or _PACKS.search(one.value) is not None for one in unread(spec))


def trains_a_part(spec: TrainingSpec) -> bool:
    """Whether the program chooses itself what trains: of the states no more is sure than weights that do not."""
    return any(one.decides == PART for one in unread(spec))
