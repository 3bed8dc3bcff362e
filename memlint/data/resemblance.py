"""Which models of the catalogue one has the name of that is in none: ``out/zephyr-7b-sft-iter0`` is called after
``HuggingFaceH4/zephyr-7b-beta``.

Who trains a model on calls the result after it, and its sizes stay. So the name of a checkpoint that only its owner has
says what its run would take if it is of that shape. It is no proof: what follows from it is a partial answer, which
names the model that it is of.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache

from memlint.data import models
from memlint.named_tuple import NamedTuple

_TOKEN = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]\d?(?![a-z])|\d+(?:\.\d+)?|[a-z]+")
_POINT = re.compile(r"(?<=\d)_(?=\d(?![\d.]*[bm]))")  # Qwen2_5-7B, but not llama_3_8b
_CAPITALISED = re.compile(r"(?<=[a-z])[A-Z][A-Za-z]+")  # BioMistral
# Words that say that a model is of another kind than the text model whose name it has as well.
_KINDS = frozenset(
    (
        *("vl", "vision", "audio", "omni", "image", "video", "moe", "embedding", "reranker", "vit", "vlm", "next"),
        *("linear", "llava", "internvl", "xcomposer", "cogvlm", "mllm", "vila", "videollama"),
        *("wav", "xls", "hubert", "wavlm", "whisper", "speech", "asr", "tts"),
    )
)
# A version of models that see, as GLM has them: GLM-4.6V-Flash, and no GLM-4.6.
_SEES = re.compile(r"\d(?:\.\d+)?v(?![a-z0-9])")
# A checkpoint in few bits has another dtype than the model that it is of, and an adapter is no model.
_OTHER = re.compile(r"[48]bit|int[48]|gptq|awq|gguf|bnb|fp8|nf4|quant|lora|adapter")
# Folders of a run's own, which is called after its model: ``qwen2.5-7b-sft/checkpoint-500``; and what a template writes
# behind its model: ``path/to/llama-3-8b/dir/or/model_id``.
_PLACE = re.compile(
    r"(?:checkpoint|ckpt|step|global_step|epoch|iter|stage)s?[-_]?\d*|(?:final|merged|best|last|latest)(?:[-_]?[a-z]+)?"
    r"|hf|huggingface|outputs?|model|weights|actor|full|dir|folder|path|or|(?:model|hub|hf)[-_]?(?:id|name|path|dir)"
)
_FOLDER = re.compile(r"[./~]|[^/]*/[^/]*/.")  # a path, and no hub id, whose first word is its owner's
# Sizes that are said in words, of families that have no others: whisper-small, bert-base-uncased.
_WORDED = frozenset(("tiny", "mini", "small", "base", "medium", "large", "huge", "xlarge", "xxlarge"))
_LEAST_WORD = 2  # characters: a letter alone names no family
MOST = 3  # models that are told


class _Name(NamedTuple):
    """The parts of a name: words, each with the version that follows it (``qwen``: ``2.5``), and sizes (``7b``)."""

    words: dict[str, str]
    sizes: tuple[str, ...]


def resembling(name: str) -> tuple[str, ...]:
    """Hub ids of catalogue models after which an id or a folder is called, of different shapes, the smallest first.

    They have the sizes that the name states, each family that it names in the version that it states, as few others as
    any, and are of its kind. Where it names no family, or one of decoders that has none of its size in its version,
    these are the smallest and the largest decoder of its size. Where it states no size, these are the decoders of its
    family and version, if they have few shapes; of a family whose sizes are words, those of its word.
    """
    wanted = _parsed(name)
    if wanted.sizes and not _families_in(wanted) and _FOLDER.match(name):  # ``llama_weights/7B_hf``
        wanted = _Name({**_parsed(os.path.dirname(name.rstrip("/"))).words, **wanted.words}, wanted.sizes)
    if _OTHER.search(name.lower()) or _SEES.search(name.lower()):
        return ()
    if not wanted.sizes:
        return _of_a_worded_size(wanted) or _of_any_size(wanted)
    if not (named := _families_in(wanted)):
        parted = _CAPITALISED.sub(lambda word: f"-{word[0]}" if word[0].lower() in _families() else word[0], name)
        return resembling(parted) if parted != name else _ends(wanted)
    best: list[str] = []
    most = (1, -len(_families()))  # families in common, and others
    for other, parts in _catalogue().items():
        if parts.sizes != wanted.sizes or (parts.words.keys() ^ wanted.words.keys()) & _KINDS:
            continue
        common = [word for word in named if word in parts.words]
        if any(wanted.words[word] not in ("", parts.words[word]) for word in common):
            continue
        score = len(common), -sum(word in _families() and word not in wanted.words for word in parts.words)
        if score > most:
            best, most = [], score
        if score == most:
            best.append(other)
    if not best and all(map(_has_decoders_alone, named)):
        return _ends(wanted)
    return _of_different_shapes(best)[:MOST]


def of_its_family(name: str) -> tuple[str, ...]:
    """The same of a word that names a family and a size; () for any other word."""
    wanted = _parsed(name)
    return resembling(name) if wanted.sizes and _families_in(wanted) else ()


def _of_different_shapes(names: list[str]) -> tuple[str, ...]:
    """One of each shape, the smallest first."""
    shapes: dict[tuple[int, str], str] = {}
    for id_ in sorted(names, key=lambda id_: (models.is_mirror(id_), len(id_), id_), reverse=True):
        if (model := models.find(id_)) is not None:
            shapes[model.parameters, model.config["model_type"]] = model.name if model.name in names else id_
    return tuple(shapes[shape] for shape in sorted(shapes))


def _of_a_worded_size(wanted: _Name) -> tuple[str, ...]:
    """``whisper-hindi-small``: models of the family that the name begins with and of its size, where the catalogue has
    the family in sizes that are words alone: those of which the name has every word, else all of them, if they have few
    shapes. What the name says of versions that the family has is theirs."""
    first = next(iter(wanted.words), "")
    if first not in _worded_families() or not wanted.words.keys() & _WORDED:
        return ()
    family = {name: parts for name, parts in _catalogue().items() if next(iter(parts.words), "") == first}
    versioned = {word for parts in family.values() for word, version in parts.words.items() if version}
    alike = [
        name
        for name, parts in family.items()
        if not (parts.words.keys() ^ wanted.words.keys()) & _WORDED
        and all(parts.words.get(word, "") == wanted.words[word] for word in versioned & wanted.words.keys())
    ]
    most = max(
        (len(family[name].words) for name in alike if family[name].words.keys() <= wanted.words.keys()), default=0
    )
    all_words = [
        name for name in alike if len(family[name].words) == most and family[name].words.keys() <= wanted.words.keys()
    ]
    found = _of_different_shapes(all_words or alike)
    return found if len(found) <= MOST else ()


@lru_cache(maxsize=1)
def _worded_families() -> frozenset[str]:
    """Families whose models in the catalogue all say their size by one word."""
    sized: dict[str, bool] = {}
    for parts in _catalogue().values():
        first = next(iter(parts.words), "")
        sized[first] = sized.get(first, True) and not parts.sizes and len(parts.words.keys() & _WORDED) == 1
    return frozenset(family for family, by_words in sized.items() if by_words and len(family) >= _LEAST_WORD)


def _of_any_size(wanted: _Name) -> tuple[str, ...]:
    """``llama-2``: decoders of a family and version; () where these have many shapes, or several families are named."""
    named = _families_in(wanted)
    if len(named) != 1:
        return ()
    versions = {word: version for word, version in wanted.words.items() if version}
    alike = []
    for other, parts in _catalogue().items():
        others = [word for word in parts.words if word in _families() and word != named[0]]
        same = all(parts.words.get(word) == version for word, version in versions.items())
        if named[0] in parts.words and same and not others and not parts.words.keys() & _KINDS:
            alike.append(other)
    known = [model for model in map(models.find, alike) if model is not None]
    found = _of_different_shapes(alike) if all(map(_is_decoder, known)) else ()
    return found if len(found) <= MOST else ()


def _families_in(name: _Name) -> list[str]:
    return [word for word in name.words if word in _families() and len(word) >= _LEAST_WORD]


def _ends(wanted: _Name) -> tuple[str, ...]:
    """The smallest and the largest decoder of a size; () for a model of another kind."""
    if wanted.words.keys() & _KINDS:
        return ()
    alike = [other for other, parts in _catalogue().items() if parts.sizes == wanted.sizes]
    known = [model for model in map(models.find, alike) if model is not None and _is_decoder(model)]
    found = [model for model in known if _has_size(model, wanted.sizes[0])] if len(wanted.sizes) == 1 else known
    found.sort(key=lambda model: (model.parameters, model.name))
    return tuple(dict.fromkeys(model.name for model in (*found[:1], *found[-1:])))


def _has_size(model: models.Model, size: str) -> bool:
    """Whether a size is the model's, and not one of its experts, or what stands behind the point of ``1_8B``: no name
    is wrong by half."""
    told = re.fullmatch(r"(\d+(?:\.\d+)?)([bm])", size)
    if told is None:
        return True
    parameters = float(told[1]) * {"b": 1e9, "m": 1e6}[told[2]]
    return parameters / 2 < model.parameters < parameters * 2


@lru_cache(maxsize=64)
def _has_decoders_alone(family: str) -> bool:
    """Whether the catalogue knows a family by nothing but decoders, models whose names say another kind aside."""
    of_it = [name for name, parts in _catalogue().items() if family in parts.words and not parts.words.keys() & _KINDS]
    found = [model for model in map(models.find, of_it) if model is not None]
    return bool(found) and all(map(_is_decoder, found))


def _is_decoder(model: models.Model) -> bool:
    return all(name.endswith(("ForCausalLM", "LMHeadModel")) for name in model.config.get("architectures", [""]))


def _parsed(name: str) -> _Name:
    words: dict[str, str] = {}
    sizes: list[str] = []
    last = ""
    parts = models.pointed(name).lower().rstrip("/").split("/")
    while len(parts) > 1 and _PLACE.fullmatch(parts[-1]):
        parts.pop()
    for token in _TOKEN.findall(_POINT.sub(".", parts[-1])):
        if token.isalpha():
            words.setdefault(token, "")  # Qwen2.5-7B-of-Qwen says its version once
            last = token
            continue
        if not token[-1].isdigit() or "b" in token:
            sizes.append(token)
        elif last:
            words[last] = words[last] or token
        last = ""
    return _Name(words, tuple(sorted(sizes)))


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, _Name]:
    return {name: _parsed(name) for name in models.names()}


@lru_cache(maxsize=1)
def _families() -> frozenset[str]:
    """The words with which names of models begin."""
    return frozenset(next(iter(parts.words), "") for parts in _catalogue().values())
