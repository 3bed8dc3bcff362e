"""Axolotl's own defaults, against ``schemas/axolotl.schema.json``."""

from __future__ import annotations

from axolotl.utils.schemas.config import AxolotlInputConfig

from tests.libraries.defaults import stated

# What the schema says of a key that Axolotl leaves unset or false.
NOTHING = (False, "none", 0.0)
# Unset, weights are loaded: our fact is that they are. Unset, transformers' own default holds.
OTHERWISE = {"reinit_weights": (None, True), "dataloader_pin_memory": (None, True)}


def test_defaults_are_those_of_its_schema() -> None:
    defaults = stated("axolotl", "Axolotl 0.19")
    assert len(defaults) > 15
    for key, default in defaults.items():
        theirs = AxolotlInputConfig.model_fields[key].default
        if key in OTHERWISE:
            assert (theirs, default) == OTHERWISE[key]
        else:
            assert theirs == default or (not theirs and default in NOTHING), f"{key}: {theirs!r}, {default!r}"
