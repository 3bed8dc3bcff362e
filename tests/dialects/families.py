"""Two small families for the tests of the dialect base, and how their files are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.dialects import registry
from memlint.dialects.base import Dialect
from memlint.documents import load
from memlint.documents.node import Document
from memlint.facts.spec import TrainingSpec

TREE: dict[str, Any] = {
    "x-memlint": {
        "family": "test-tree",
        "title": "Test trainer",
        "formats": ["yaml", "json", "toml"],
        "signature": {
            "all": ["training.batch"],
            "any": ["model.width", ["model.depth", "model.name"]],
            "none": ["not_this_one"],
        },
        "framework": "torch 2.13",
        "architecture": "test",
        "facts": {"optimizer": {"default": "adamw", "default_of": "the test trainer's code"}},
    },
    "type": "object",
    "properties": {
        "training": {
            "type": "object",
            "properties": {
                "batch": {"type": "integer", "minimum": 1, "x-memlint": {"fact": "micro_batch_size"}},
                "accumulate": {
                    "type": "integer",
                    "x-memlint": {
                        "fact": "gradient_accumulation_steps",
                        "default": 1,
                        "default_of": "the test trainer's defaults",
                    },
                },
                "remat": {
                    "type": ["boolean", "string"],
                    "x-memlint": {
                        "fact": "checkpointing",
                        "default": "none",
                        "values": {"true": "full", "false": "none"},
                        "aliases": ["checkpoint"],
                    },
                },
                "precision": {
                    "enum": ["32", "bf16-mixed", "16-true"],
                    "x-memlint": {
                        "fact": "compute_dtype",
                        "values": {"32": "float32", "bf16-mixed": "bfloat16", "16-true": "float16"},
                    },
                },
                "rate": {"type": "number", "x-memlint": {"fact": "rate"}},
                "workers": {"type": "integer", "x-memlint": {"memory_relevant": True}},
            },
        },
        "model": {
            "type": "object",
            "properties": {
                "width": {"type": "integer", "x-memlint": {"fact": "hyperparameters.width", "default": 64}},
                "depth": {"type": "integer"},
                "name": {"type": "string", "x-memlint": {"fact": "source"}},
                "dims": {
                    "type": "array",
                    "items": {"type": "integer"},
                    "x-memlint": {"fact": "hyperparameters.dims"},
                },
                "shape": {
                    "type": "array",
                    "prefixItems": [
                        {"type": "integer", "x-memlint": {"fact": "channels"}},
                        {"type": "integer", "x-memlint": {"fact": "image_size"}},
                    ],
                },
            },
        },
        "zero": {
            "type": ["object", "string"],
            "properties": {"stage": {"type": "integer", "x-memlint": {"fact": "zero_stage", "default": 0}}},
            "x-memlint": {"companion": "json", "graft": True},
        },
    },
}

CLASS: dict[str, Any] = {
    "x-memlint": {
        "family": "test-class",
        "formats": ["python"],
        "signature": {"all": ["BATCH", "WIDTH"], "class": True},
        "architecture": "test",
    },
    "type": "object",
    "properties": {
        "BATCH": {"type": "integer", "x-memlint": {"fact": "micro_batch_size"}},
        "WIDTH": {"type": "integer", "x-memlint": {"fact": "hyperparameters.width"}},
        "NAME": {"type": "string", "x-memlint": {"fact": "source"}},
        "REMAT": {
            "type": "boolean",
            "x-memlint": {"fact": "checkpointing", "values": {"true": "full", "false": "none"}},
        },
        "RATE": {"type": "number", "x-memlint": {"fact": "rate"}},
        "SHAPE": {
            "type": "array",
            "prefixItems": [
                {"type": "integer", "x-memlint": {"fact": "channels"}},
                {"type": "integer", "x-memlint": {"fact": "image_size"}},
            ],
        },
    },
}

SCRIPT: dict[str, Any] = {
    "x-memlint": {
        "family": "test-script",
        "formats": ["shell"],
        "signature": {"program": r"(^|/)main_toy\.py$", "any": ["batch", "bs", "b"]},
        "architecture": "test",
    },
    "type": "object",
    "properties": {
        "batch": {
            "type": "integer",
            "x-memlint": {"fact": "micro_batch_size", "aliases": ["bs", "b"]},
        },
        "width": {"type": "integer", "x-memlint": {"fact": "hyperparameters.width", "default": 64}},
        "rate": {"type": "number", "x-memlint": {"fact": "rate"}},
        "remat": {
            "type": "boolean",
            "x-memlint": {"fact": "checkpointing", "values": {"true": "full", "false": "none"}, "default": "none"},
        },
        "compile": {"type": "boolean", "x-memlint": {"fact": "compile", "flag": True, "default": False}},
        "dims": {"type": "array", "items": {"type": "integer"}, "x-memlint": {"fact": "hyperparameters.dims"}},
        "name": {"type": "string", "x-memlint": {"fact": "source"}},
        "limit": {"type": ["integer", "null"], "x-memlint": {"fact": "limit"}},
    },
}

LAUNCH: dict[str, Any] = {
    "x-memlint": {
        "family": "test-launch",
        "formats": ["yaml", "shell"],
        "signature": {"all": ["data.batch"], "program": r"train_test\.py$"},
        "architecture": "test",
    },
    "type": "object",
    "properties": {
        "train_config": {"type": "string", "x-memlint": {"companion": "yaml"}},
        "mixed": {"type": "string", "x-memlint": {"fact": "compute_dtype", "default": "float32"}},
        "data": {
            "type": "object",
            "properties": {"batch": {"type": "integer", "x-memlint": {"fact": "micro_batch_size"}}},
        },
    },
}


def installed() -> Iterator[None]:
    """The four families, known to the registry for one test."""
    before = dict(registry._dialects)
    for schema in (TREE, CLASS, SCRIPT, LAUNCH):
        registry.register(Dialect(schema))
    yield
    registry._dialects.clear()
    registry._dialects.update(before)


def read(path: str, text: str) -> Document:
    return load.load(path, text)


def specs(path: str, text: str, *overrides: str) -> list[TrainingSpec]:
    return registry.specs(read(path, text), overrides)


def spec(path: str, text: str, *overrides: str) -> TrainingSpec:
    (found,) = specs(path, text, *overrides)
    return found
