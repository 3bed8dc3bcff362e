"""DeepSpeed's own defaults, against ``schemas/deepspeed.schema.json`` and the constants of
``memlint.models.parallel.zero``."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from memlint.models.parallel import zero
from tests.libraries.defaults import stated

# DeepSpeed's alias of a key -> its field.
FIELDS = {field.alias or name: name for name, field in DeepSpeedZeroConfig.model_fields.items()}
# Nothing is offloaded: the schema names the device, DeepSpeed has no section.
ABSENT = ("offload_optimizer.device", "offload_param.device")


def test_defaults_are_those_of_its_zero_config() -> None:
    config = DeepSpeedZeroConfig()
    defaults = {
        key.removeprefix("zero_optimization."): value
        for key, value in stated("deepspeed", "DeepSpeed 0.19").items()
        if key.startswith("zero_optimization.")
    }
    assert len(defaults) > 10
    for key, default in defaults.items():
        theirs: Any = getattr(config, FIELDS[key.partition(".")[0]])
        assert (theirs is None) if key in ABSENT else (theirs == default), key


def test_buckets_that_no_config_states_are_deepspeeds() -> None:
    config = DeepSpeedZeroConfig()
    assert config.reduce_bucket_size == zero.REDUCE_BUCKET
    assert config.prefetch_bucket_size == zero.PREFETCH_BUCKET
    assert config.max_live_parameters == zero.LIVE_PARAMETERS
    assert config.max_reuse_distance == zero.REUSE_DISTANCE
    assert config.param_persistence_threshold == zero.PERSISTENCE
    assert config.sub_group_size == zero.SUB_GROUP
