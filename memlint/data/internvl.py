"""OpenGVLab's chat models: which tower and which decoder each of them joins (``internvl.json``, which says where from).

Their ``config.json`` is of type ``internvl_chat`` and holds both parts; no class of transformers reads it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from memlint.data import models
from memlint.named_tuple import NamedTuple

TOWER_TYPE, CHAT_TYPE = "intern_vit_6b", "internvl_chat"


class Chat(NamedTuple):
    """A chat model.

    name          of the model on the hub, without its owner
    tower, words  the contents of a ``config.json`` of each part; the decoder's has the rows that the chat model has
    """

    name: str
    tower: dict[str, Any]
    words: dict[str, Any]


def chat(name: str) -> Chat | None:
    """The model of a hub id, or of a folder that has its name; None where it is not known."""
    table = _table()
    found = _among(table["models"], name, table["copies_end"])
    if not found:
        return None
    tower, decoder, rows = table["models"][found]
    known = models.find(decoder)
    assert known is not None, decoder
    words = {**known.config, "vocab_size": rows, "tie_word_embeddings": False}  # InternVLChatConfig ties none
    return Chat(found, table["towers"][tower], words)


def names() -> list[str]:
    """Of the chat models, without their owner."""
    return list(_table()["models"])


def tower(name: str) -> dict[str, Any] | None:
    """The ``config.json`` of a tower by its hub id, or by a folder that has its name."""
    table = _table()
    found = _among(table["tower_names"], name)
    config: dict[str, Any] | None = table["towers"][table["tower_names"][found]] if found else None
    return config


def rows(words: dict[str, Any]) -> int | None:
    """Of a decoder's vocabulary once the script has added its tokens; None where its tokenizer is not known."""
    found = _table()["rows"].get(str(words.get("model_type")), {}).get(str(words.get("vocab_size")))
    return None if found is None else int(found)


def _among(known: dict[str, Any], name: str, ends: tuple[str, ...] = ()) -> str:
    """The one of these whose name is the last part of a path, or begins one that ends in one of ``ends``; or ""."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    stems = [last, *(last.removesuffix(end.lower()) for end in ends)]
    return next((one for stem in stems for one in known if one.lower() == stem), "")


@cache
def _table() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "internvl.json"), encoding="utf-8") as file:
        contents: dict[str, Any] = json.load(file)
    return contents
