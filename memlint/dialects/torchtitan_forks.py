"""What a repository's own copy of torchtitan says of its models: flavors that it adds, and sizes that it changes."""

from __future__ import annotations

import ast

from memlint.architectures import torchtitan as flavors
from memlint.architectures.decoder import Decoder
from memlint.dialects import companions
from memlint.documents import load
from memlint.documents.python.source import Reading
from memlint.facts.spec import TrainingSpec, UnknownModel

# Keys of [model] in torchtitan 0.1 to 0.2 (config_manager.py): a fork that has others may say its model by them.
_OF_A_MODEL = frozenset(
    (
        *("name", "flavor", "tokenizer_path", "hf_assets_path", "norm_type", "converters"),
        *("print_after_conversion", "use_flex_attn", "attn_mask_type", "depth_init"),
    )
)


def own_words(spec: TrainingSpec) -> str:
    """The key of [model] by which a fork says its model, where neither name nor flavor does; "" where none is."""
    table = spec.root.get("model")
    if table is None or not isinstance(table.value, dict) or {"name", "flavor"} & set(table.value):
        return ""
    return next((f"model.{name}" for name in table.value if name not in _OF_A_MODEL), "")


def decoder(spec: TrainingSpec, name: str, flavor: str) -> Decoder | None:
    """The decoder of a flavor as this repository's own table has it; None where there is none. Raises UnknownModel."""
    for folder in dict.fromkeys((name, name.rstrip("0123456789"))):
        path = companions.find(f"torchtitan/models/{folder}/__init__.py", spec.document.path)
        sizes = _sizes(path, name, flavor) if path is not None else None
        if sizes is not None and name in flavors.ROWS and not flavors.is_shipped(name, flavor, sizes):
            return flavors.llama(sizes, flavors.ROWS[name])
    return None


def _sizes(path: str, name: str, flavor: str) -> dict[str, object] | None:
    """The keyword arguments of ``llama3_configs = {"8B": ModelArgs(...)}``."""
    try:
        tree = Reading().parse(path, load.read_text(path))
    except (OSError, load.Unreadable):
        return None
    for node in tree.body if tree is not None else ():
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Dict):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if not isinstance(target, ast.Name) or not target.id.startswith(name + "_"):
            continue
        for key, made in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == flavor and isinstance(made, ast.Call):
                return _arguments(made)
    return None


def _arguments(made: ast.Call) -> dict[str, object]:
    if made.args or any(one.arg is None or not isinstance(one.value, ast.Constant) for one in made.keywords):
        raise UnknownModel("the arguments of its ModelArgs are no plain numbers")
    return {str(one.arg): one.value.value for one in made.keywords if isinstance(one.value, ast.Constant)}
