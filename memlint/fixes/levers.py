"""The levers that rules pull: changes of facts that lower the peak, each with how intrusive it is.

A lever is a proposal; its effect is always re-estimated. It is None where it does not apply to the run, or where the
family has no key for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.models import UnknownModel
from memlint.named_tuple import NamedTuple
from memlint.plugin import DISPLAY, SAFE, UNSAFE, Fix, Run

HALF = ("bfloat16", "float16")


class Lever(NamedTuple):
    safety: str
    changes: dict[str, Any]


def _first_settable(run: Run, name: str, values: tuple[Any, ...]) -> Any:
    return next((value for value in values if run.can_set(name, value)), None)


def fused_optimizer(run: Run) -> Lever | None:
    """One kernel without temporaries instead of a list as large as the parameters."""
    if run.value("optimizer_implementation") not in ("foreach", "loop"):
        return None
    if not run.can_set("optimizer_implementation", "fused"):
        return None
    return Lever(SAFE, {"optimizer_implementation": "fused"})


def fused_attention(run: Run) -> Lever | None:
    """A kernel that does not keep the probabilities."""
    if run.value("attention") != "eager":
        return None
    value = _first_settable(run, "attention", ("sdpa", "flash", "xformers"))
    return None if value is None else Lever(UNSAFE, {"attention": value})


def checkpointing(run: Run) -> Lever | None:
    """Recompute activations instead of keeping them."""
    if run.value("checkpointing") in (None, "full"):
        return None
    value = _first_settable(run, "checkpointing", ("full", "blocks"))
    if value is None or value == run.value("checkpointing"):
        return None
    return Lever(UNSAFE, {"checkpointing": value})


def mixed_precision(run: Run) -> Lever | None:
    """Activations in 16 bits under autocast; weights, gradients and optimizer states stay in fp32."""
    if run.value("compute_dtype") != "float32" or run.value("parameter_dtype", "float32") in HALF:
        return None
    value = _first_settable(run, "compute_dtype", HALF)
    return None if value is None else Lever(UNSAFE, {"compute_dtype": value})


def half_weights(run: Run) -> Lever | None:
    """Weights, and with them gradients and optimizer states, in bfloat16."""
    if run.value("parameter_dtype") != "float32" or not run.can_set("parameter_dtype", "bfloat16"):
        return None
    return Lever(UNSAFE, {"parameter_dtype": "bfloat16"})


def small_optimizer(run: Run) -> Lever | None:
    """States in one byte each, or factored."""
    if run.value("optimizer") not in ("adamw", "adam"):
        return None
    named, switch = run.fact("optimizer"), run.fact("optimizer_implementation")
    if switch is not None and switch.node is not None and (named is None or switch.node is not named.node):
        return None  # `fused: true` beside it would be an argument that the other optimizer does not take
    value = _first_settable(run, "optimizer", ("adamw_8bit", "adafactor"))
    return None if value is None else Lever(UNSAFE, {"optimizer": value})


def no_ema(run: Run) -> Lever | None:
    """Without the second copy of the weights."""
    if not run.value("ema") or not run.can_set("ema", False):
        return None
    return Lever(DISPLAY, {"ema": False})


def frozen_encoder(run: Run) -> Lever | None:
    """An encoder that does not train keeps nothing for backward."""
    if run.value("encoder_frozen") is not False or not run.can_set("encoder_frozen", True):
        return None
    return Lever(DISPLAY, {"encoder_frozen": True})


def batch_changes(run: Run, batch: int) -> dict[str, Any]:
    """A smaller micro batch with as much more accumulation, where the family has a key for that or derives it."""
    old = run.value("micro_batch_size")
    changes: dict[str, Any] = {"micro_batch_size": batch}
    steps = run.value("gradient_accumulation_steps")
    if isinstance(steps, int) and old % batch == 0:
        more = steps * (old // batch)
        whole, counted = run.fact("global_batch_size"), run.fact("gradient_accumulation_steps")
        # Where the global batch is what the config states, accumulation follows without a key of its own.
        follows = whole is not None and counted is not None and bool(whole.key) and whole.key == counted.key
        if follows or run.can_set("gradient_accumulation_steps", more):
            changes["gradient_accumulation_steps"] = more
    return changes


def with_evaluation(run: Run, changes: dict[str, Any]) -> dict[str, Any]:
    """A larger evaluation batch goes down with the micro batch: else its blocks, which training's are too small to
    serve, stay reserved beside them. No result depends on its size."""
    written, batch = run.fact("evaluation_batch_size"), changes["micro_batch_size"]
    if written is None or written.node is None or not isinstance(written.value, int) or written.value <= batch:
        return changes
    if not run.can_set("evaluation_batch_size", batch):
        return changes
    return {**changes, "evaluation_batch_size": batch}


def smaller_batch(run: Run) -> Lever | None:
    """The largest halving of the micro batch that fits the budget; where none does, the largest of those with the
    lowest peak; one halving where there is no budget to meet."""
    if not _can_shrink(run):
        return None
    if not run.over_budget:
        return Lever(DISPLAY, with_evaluation(run, batch_changes(run, run.value("micro_batch_size") // 2)))
    changes = _shrink(run, {})[0]
    return Lever(DISPLAY, changes) if changes else None


def _can_shrink(run: Run) -> bool:
    batch = run.value("micro_batch_size")
    return isinstance(batch, int) and batch >= 2 and run.can_set("micro_batch_size", batch // 2)


def _shrink(run: Run, changes: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """(changes with the largest halving of the micro batch that fits the budget, the peak after them); where none
    fits, with the largest of those that have the lowest peak."""
    assert run.budget_bytes is not None
    best: tuple[dict[str, Any], int] | None = None
    smaller = run.value("micro_batch_size") // 2
    while smaller >= 1:
        try:
            tried = with_evaluation(run, {**changes, **batch_changes(run, smaller)})
            after = run.what_if(**tried).device_bytes
        except UnknownModel:  # a recording that does not cover this size
            smaller //= 2
            continue
        if best is None or after < best[1]:
            best = (tried, after)
        if after <= run.budget_bytes:
            break
        smaller //= 2
    return best or (changes, run.what_if(**changes).device_bytes)


# From the least to the most intrusive: what is learned changes only with the last ones.
LADDER: tuple[Callable[[Run], Lever | None], ...] = (
    fused_optimizer,
    fused_attention,
    checkpointing,
    mixed_precision,
    small_optimizer,
    half_weights,
    smaller_batch,
    no_ema,
    frozen_encoder,
)


def describe(run: Run, changes: dict[str, Any]) -> str:
    """``batch_size 128 -> 32, gradient_accumulate_every 1 -> 4``, in the config's own words."""
    parts = []
    facts = {name: run.fact(name) for name in changes}
    labels = [fact.label for fact in facts.values() if fact is not None]
    for name, value in changes.items():
        fact = facts[name]
        edits = run.edits(**{name: value})
        text = " ".join(edits[0].text.replace("\\\n", " ").split()) if edits else str(value)
        if fact is not None and fact.node is not None and edits:
            spelled = fact.label if labels.count(fact.label) == 1 else fact.key
            if isinstance(value, (list, tuple)):  # its elements may be edits of their own
                text = str(list(value))
            parts.append(f"{spelled} {_plain(fact.node.plain())} -> {text}")
        elif edits:
            parts.append(f"add {text.strip(', ')}")
        else:
            parts.append(f"{name} {run.value(name)} -> {value}")
    return ", ".join(parts)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def fix(run: Run, lever: Lever | None) -> list[Fix]:
    """The lever as a fix, in a list; [] where there is none or it saves nothing."""
    if lever is None:
        return []
    found = run.fix(describe(run, lever.changes), lever.safety, **lever.changes)
    return [found] if found.saved_bytes is None or found.saved_bytes > 0 else []


def fixes(run: Run, *levers: Callable[[Run], Lever | None]) -> list[Fix]:
    """Those of the levers that apply and lower the peak, in the order given."""
    return [found for lever in levers for found in fix(run, lever(run))]


def plan(run: Run) -> Fix | None:
    """The first rungs of the ladder that together fit the budget; None where even all of them do not."""
    if run.budget_bytes is None or run.estimate is None:
        return None
    changes: dict[str, Any] = {}
    safety = SAFE
    before = run.estimate.device_bytes
    for rung in LADDER:
        if rung is smaller_batch:  # shrunk on top of the changes so far
            if _can_shrink(run):
                changes, before = _shrink(run, changes)
                safety = DISPLAY
                if before <= run.budget_bytes:
                    return run.fix(describe(run, changes), safety, **changes)
            continue
        lever = rung(run)
        if lever is None:
            continue
        tried = {**changes, **lever.changes}
        if rung is small_optimizer:
            tried.pop("optimizer_implementation", None)  # torch's own switch, which other optimizers do not have
        after = run.what_if(**tried).device_bytes
        if after < before:
            changes, before = tried, after
            safety = max(safety, lever.safety, key=(SAFE, UNSAFE, DISPLAY).index)
            if after <= run.budget_bytes:
                return run.fix(describe(run, changes), safety, **changes)
    return None
