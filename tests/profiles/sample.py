"""A profile that is small enough to work out by hand."""

from __future__ import annotations

from typing import Any


def sample() -> dict[str, Any]:
    """Two layers: each keeps ``4*B*S`` for backward; the weights and their gradients are 512 bytes a layer."""
    return {
        "version": 1,
        "model": "Tiny",
        "made_with": {"memlint": "0.1.0", "torch": "2.13.0"},
        "dimensions": {
            "B": {"fact": "micro_batch_size", "key": "data.batch_size", "recorded": 4},
            "S": {"fact": "sequence_length", "key": "data.length", "recorded": 256},
            "A": {"fact": "gradient_accumulation_steps", "key": "", "recorded": 1},
        },
        "parameters": {"all": "256", "trained": "256"},
        "settings": {"model.depth": 2},
        "training": {"optimizer": None},
        "sources": {},
        "uses": ["matmul"],
        "checked": [],
        "labels": [
            ["parameters", "layers.*", "weight"],
            ["activations", "layers.*", "gelu"],
            ["gradients", "layers.*", "weight"],
        ],
        "kinds": [[0, "512"], [1, "4*B*S"], [2, "512"]],
        "blocks": [],
        "regimes": [
            {
                "when": [["A == 1", "B >= 2", "S%16 == 0"], ["A == 1", "B == 1"]],
                "saved": "8*B*S",
                "tape": [
                    {"phase": "setup", "events": ["2x( +0 )"]},
                    {"phase": "forward", "events": ["+1", "+1"]},
                    {"phase": "backward", "events": ["2x( +2 -1 )"]},
                    {"phase": "optimizer_step", "events": ["<2 -2"]},
                ],
            }
        ],
    }
