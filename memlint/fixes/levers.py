"""The levers that rules pull: changes of facts that lower the peak, each with how intrusive it is.

A lever is a proposal; its effect is always re-estimated. It is None where it does not apply to the run, or where the
family has no key for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from memlint.documents.node import Edit, Node
from memlint.facts.spec import HYPER, Fact, Name
from memlint.models import UnknownModel
from memlint.named_tuple import NamedTuple
from memlint.plugin import DISPLAY, SAFE, UNSAFE, Fix, Run
from memlint.tape.estimate import Estimate

HALF = ("bfloat16", "float16")


SHARDED = ("fsdp1", "fsdp2", "zero")

# Libraries whose optimizers a trainer cannot exchange for another by its name.
OWN_OPTIMIZERS = ("deepspeed", "megatron", "nanotron", "nanochat")

# DeepSpeed's own size of the bucket that ZeRO-3 fetches ahead (deepspeed/runtime/zero/config.py), in elements: what its
# other buckets, ten times as large, may shrink to before messages become short.
SMALL_BUCKET_ELEMENTS = 50_000_000


# Share of the peak below which how the allocator's segments fall out decides.
TRIFLE = 1 / 100


class Lever(NamedTuple):
    """``changes`` are written; ``implied`` are facts that follow from them, and have no key of their own."""

    safety: str
    changes: dict[Name, Any]
    implied: dict[Name, Any] = {}  # noqa: RUF012


def _first_settable(run: Run, name: Name, values: tuple[Any, ...]) -> Any:
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


# Losses that are made of the logits themselves: their trainers take no fused one beside them, whatever is asked for.
_OF_LOGITS = tuple(HYPER + name for name in ("label_smoothing", "use_dft_loss", "use_asft_loss", "use_eaft_loss"))


def fused_loss(run: Run) -> Lever | None:
    """A loss that never holds the logits of all tokens, nor their gradients."""
    if run.value("loss", "full") != "full" or any(run.value(name) for name in _OF_LOGITS):
        return None
    value = _first_settable(run, "loss", ("fused", "chunked"))
    return None if value is None else Lever(UNSAFE, {"loss": value})


def checkpointing(run: Run) -> Lever | None:
    """Recompute activations instead of keeping them."""
    if run.value("checkpointing") in (None, "full"):
        return None
    value = _first_settable(run, "checkpointing", ("full", "blocks"))
    if value is None or value == run.value("checkpointing"):
        return None
    return Lever(UNSAFE, {"checkpointing": value})


def checkpoint_dtype(run: Run) -> str:
    """The dtype that the model's own config states; "" where it states none."""
    config = run.value("hyperparameters.config")
    if not isinstance(config, dict):
        return ""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        stated = part.get("dtype") or part.get("torch_dtype")
        if stated:
            return str(stated)
    return ""


def halves(run: Run) -> tuple[str, ...]:
    """The 16-bit dtypes that the card multiplies in, the better first. Weights that were trained in bfloat16 hold
    numbers that float16 has none for."""
    usable: tuple[str, ...] = HALF
    if run.gpu:
        from memlint.data.catalogue import parse_gpu

        if not parse_gpu(run.gpu)[0].bf16:
            usable = HALF[1:]
    if run.value("pretrained", True) and checkpoint_dtype(run) == "bfloat16":
        usable = tuple(dtype for dtype in usable if dtype != "float16")
    return usable


def mixed_precision(run: Run) -> Lever | None:
    """Activations in 16 bits under autocast; weights, gradients and optimizer states stay in fp32."""
    if run.value("compute_dtype") != "float32" or run.value("parameter_dtype", "float32") in HALF:
        return None
    value = _first_settable(run, "compute_dtype", halves(run))
    return None if value is None else Lever(UNSAFE, {"compute_dtype": value})


def half_weights(run: Run) -> Lever | None:
    """Weights, and with them gradients and optimizer states, in bfloat16; beside adapters, the frozen ones."""
    if "bfloat16" not in halves(run):
        return None
    if run.value("tuning", "full") != "full":
        loaded = run.value("frozen_dtype") == "float32" and run.value("quantization.bits") is None
        if not loaded or not run.can_set("frozen_dtype", "bfloat16"):
            return None
        return Lever(UNSAFE, {"frozen_dtype": "bfloat16"})
    if run.value("parameter_dtype") != "float32" or not run.can_set("parameter_dtype", "bfloat16"):
        return None
    return Lever(UNSAFE, {"parameter_dtype": "bfloat16"})


def small_optimizer(run: Run) -> Lever | None:
    """States in one byte each, or factored. Not of shards: what is left of a tensor there has no rows or blocks."""
    if run.value("parallelism.strategy") in SHARDED:
        return None
    if run.value("optimizer") not in ("adamw", "adam") or run.value("optimizer_library", "torch") in OWN_OPTIMIZERS:
        return None
    named, switch = run.fact("optimizer"), run.fact("optimizer_implementation")
    if switch is not None and switch.node is not None and (named is None or switch.node is not named.node):
        return None  # `fused: true` beside it would be an argument that the other optimizer does not take
    value = _first_settable(run, "optimizer", ("adamw_8bit", "adafactor"))
    return None if value is None else Lever(UNSAFE, {"optimizer": value})


def bucket_views(run: Run) -> Lever | None:
    """Gradients that are views of the buckets in which they are reduced."""
    name: Final = "parallelism.gradient_as_bucket_view"
    if run.value("parallelism.strategy") != "ddp" or run.value(name) or not run.can_set(name, True):
        return None
    return Lever(SAFE, {name: True})


def sharded_states(run: Run) -> Lever | None:
    """Gradients and optimizer states in shards, or at least the latter, where a stage can be written."""
    stage = _first_settable(run, "parallelism.zero_stage", (2, 1))
    if run.value("parallelism.strategy") != "ddp" or stage is None:
        return None
    return Lever(UNSAFE, {"parallelism.zero_stage": stage}, {"parallelism.strategy": "zero"})


def _fetches(run: Run) -> Name:
    """The bucket in which parameters are fetched: of two, the one that the stage uses."""
    sharded = run.value("parallelism.zero_stage") == 3
    return "parallelism.prefetch_bucket_elements" if sharded else "parallelism.gather_bucket_elements"


def smaller_buckets(run: Run, settable: bool = True) -> Lever | None:
    """ZeRO's buckets at a tenth of their default; without ``settable``, also those that have no key here."""
    from memlint.models.parallel.zero import REDUCE_BUCKET

    changes: dict[Name, Any] = {}
    fact: Name
    for fact, default in (("parallelism.reduce_bucket_elements", REDUCE_BUCKET), (_fetches(run), 0)):
        size = run.value(fact, default)
        if not isinstance(size, (int, float)) or size <= SMALL_BUCKET_ELEMENTS:
            continue
        if not settable or run.can_set(fact, SMALL_BUCKET_ELEMENTS):
            changes[fact] = SMALL_BUCKET_ELEMENTS
    return Lever(SAFE, changes) if changes else None


# Switches that compute a reference's log-probabilities before training, by the name of what they set.
_PRECOMPUTED = (HYPER + "precompute_ref_log_probs",)


# Methods that train on what the policy writes as it trains: nobody knows that before training.
_GENERATING = ("grpo", "rloo", "ppo")


def precomputed_reference(run: Run) -> Lever | None:
    """Log-probabilities of the reference from before training, in place of a copy of the weights."""
    if run.value("reference_model") != "copy" or run.value("method") in _GENERATING:
        return None
    name = next((name for name in _PRECOMPUTED if run.can_set(name, True)), None)
    return None if name is None else Lever(UNSAFE, {name: True}, {"reference_model": "precomputed"})


def no_ema(run: Run) -> Lever | None:
    """Without the second copy of the weights."""
    if not run.value("ema") or not run.can_set("ema", False):
        return None
    return Lever(DISPLAY, {"ema": False})


# Factors of a step's tokens that are no size of a sample, or that nobody can choose.
_NO_SIZES = ("micro_batch_size", "observation_steps", "sequences_per_sample")


def largest_size(run: Run) -> Fact | None:
    """Of the sizes whose product is a sample's tokens, the largest whose half can be written."""
    _, names = run.value("token_product", ("", ()))
    facts = [fact for name in names if name not in _NO_SIZES and (fact := run.fact(name)) is not None]
    sizes = [one for one in facts if isinstance(one.value, int) and one.value > 1]
    settable = [one for one in sizes if run.can_set(one.name, one.value // 2)]
    return max(settable, key=lambda one: one.value, default=None)


def fewer(run: Run, name: Name, value: int) -> Lever:
    """A smaller size of the input, with the sizes that the family makes of the same key."""
    stated = run.fact(name)
    implied: dict[Name, Any] = {}
    fact = run.fact("evaluation_sequence_length")
    same = fact is not None and stated is not None and fact.key == stated.key and fact.value == stated.value
    if name == "sequence_length" and same:
        implied["evaluation_sequence_length"] = value
    return Lever(DISPLAY, {name: value}, implied)


def frozen_encoder(run: Run) -> Lever | None:
    """An encoder that does not train keeps nothing for backward."""
    if run.value("encoder_frozen") is not False or not run.can_set("encoder_frozen", True):
        return None
    return Lever(DISPLAY, {"encoder_frozen": True})


def batch_changes(run: Run, batch: int) -> dict[Name, Any]:
    """A smaller micro batch with as much more accumulation, where the family has a key for that or derives it."""
    old = run.value("micro_batch_size")
    changes: dict[Name, Any] = {"micro_batch_size": batch}
    steps = run.value("gradient_accumulation_steps")
    if isinstance(steps, int) and old % batch == 0:
        more = steps * (old // batch)
        if _can_accumulate(run, more):
            changes["gradient_accumulation_steps"] = more
    return changes


def _can_accumulate(run: Run, steps: int) -> bool:
    """Whether the family has a key for it, or it follows from the global batch that the config states."""
    return _follows(run) or run.can_set("gradient_accumulation_steps", steps)


def _follows(run: Run) -> bool:
    """Whether the global batch is what the config states: micro batches have to divide it. How often gradients
    accumulate then follows, also where nothing says on how many devices."""
    whole, counted = run.fact("global_batch_size"), run.fact("gradient_accumulation_steps")
    if whole is None or not whole.key:
        return False
    return whole.node is not None if counted is None else whole.key == counted.key


def with_evaluation(run: Run, changes: dict[Name, Any]) -> dict[Name, Any]:
    """A larger evaluation batch goes down with the micro batch: else its blocks, which training's are too small to
    serve, stay reserved beside them. No result depends on its size."""
    written, batch = run.fact("evaluation_batch_size"), changes["micro_batch_size"]
    if written is None or written.node is None or not isinstance(written.value, int) or written.value <= batch:
        return changes
    if not run.can_set("evaluation_batch_size", batch):
        return changes
    return {**changes, "evaluation_batch_size": batch}


def larger_batch(run: Run) -> dict[Name, Any]:
    """The largest doubling of the micro batch whose estimate surely fits the budget, with as much less accumulation
    where that divides; {} where none fits."""
    assert run.budget_bytes is not None
    best: dict[Name, Any] = {}
    old, steps = run.value("micro_batch_size"), run.value("gradient_accumulation_steps")
    factor = 2
    while True:
        changes: dict[Name, Any] = {"micro_batch_size": old * factor}
        if isinstance(steps, int) and (steps > 1 or _follows(run)):
            if steps % factor or not _can_accumulate(run, steps // factor):
                return best
            changes["gradient_accumulation_steps"] = steps // factor
        elif steps is None and _follows(run) and run.value("global_batch_size") % (old * factor):
            return best
        if not run.fits_if(**changes):
            return best
        best = changes
        factor *= 2


def smaller_batch(run: Run) -> Lever | None:
    """The largest halving of the micro batch that fits the budget; where none does, the largest of those with the
    lowest peak; one halving where there is no budget to meet."""
    if not _can_shrink(run):
        return None
    if not run.over_budget:
        return Lever(DISPLAY, with_evaluation(run, batch_changes(run, halvings(run)[0])))
    changes = _shrink(run, {})
    return Lever(DISPLAY, changes) if changes else None


def halvings(run: Run) -> list[int]:
    """Half of the micro batch, half of that, and so on, as far as they leave the global batch as it is."""
    batch, smaller = run.value("micro_batch_size"), []
    if not isinstance(batch, int):
        return []
    half = batch // 2
    while half >= 1:
        if batch % half == 0 or not _follows(run):
            smaller.append(half)
        half //= 2
    return smaller


def _can_shrink(run: Run) -> bool:
    smaller = halvings(run)
    return bool(smaller) and run.can_set("micro_batch_size", smaller[0])


def _shrink(run: Run, changes: dict[Name, Any]) -> dict[Name, Any]:
    """The changes with the largest halving of the micro batch that fits the budget; where none fits, with the largest
    of those that have the lowest peak."""
    assert run.budget_bytes is not None
    every = [with_evaluation(run, {**changes, **batch_changes(run, smaller)}) for smaller in halvings(run)]
    fitting = _first_that_fits(run, every)
    if fitting:
        return fitting
    best: dict[Name, Any] = {}
    least: Estimate | None = None
    for tried in every:
        try:
            after = run.what_if(**tried)
        except UnknownModel:  # a recording that does not cover this size
            continue
        if least is None or lower(least, after):
            best, least = tried, after
        if after.device_bytes <= run.budget_bytes and run.fits_if(**tried):
            break
    return best or changes


def _first_that_fits(run: Run, every: list[dict[Name, Any]]) -> dict[Name, Any]:
    """The first of some changes that fits the budget, found by what is live alone while that is too much; {} where none
    does, or where it leaves more alive than one before it."""
    assert run.budget_bytes is not None
    least: int | None = None
    for tried in every:
        try:
            live = run.allocated_if(**tried)
            if live <= run.budget_bytes and run.fits_if(**tried):
                return tried if least is None or live <= least else {}
        except UnknownModel:
            continue
        least = live if least is None else min(least, live)
    return {}


# From the least to the most intrusive: what is learned changes only with the last ones.
LADDER: tuple[Callable[[Run], Lever | None], ...] = (
    fused_optimizer,
    bucket_views,
    smaller_buckets,
    fused_attention,
    fused_loss,
    checkpointing,
    precomputed_reference,
    mixed_precision,
    small_optimizer,
    half_weights,
    sharded_states,
    smaller_batch,
    no_ema,
    frozen_encoder,
)


def describe(run: Run, changes: dict[Name, Any]) -> str:
    """``batch_size 128 -> 32, gradient_accumulate_every 1 -> 4``, in the config's own words."""
    parts: list[str] = []
    followed: list[str] = []
    facts = {name: run.fact(name) for name in changes}
    labels = [fact.label for fact in facts.values() if fact is not None]
    for names, edits in run.spelled(changes):
        if len(names) > 1:
            parts += (_described(run, edit) for edit in edits)
            continue
        name = names[0]
        fact, value = facts[name], changes[name]
        text = _on_one_line(edits[0]) if edits else str(value)
        if fact is not None and fact.node is not None and edits and _stands_at(edits[0], fact.node):
            spelled = fact.label if labels.count(fact.label) == 1 else fact.key
            if isinstance(value, (list, tuple)):  # its elements may be edits of their own
                text = str(list(value))
            told = f"{spelled} {_plain(fact.node.plain())} -> {text}"
            parts.append(told if edits[0].text else f"drop {spelled}")
        elif edits:
            parts += (_described(run, edit) for edit in edits)
        elif name == "gradient_accumulation_steps":  # no key says it: it follows from the global batch
            followed.append(f"accumulation {run.value(name)} -> {value}")
        else:
            parts.append(f"{name} {run.value(name)} -> {value}")
    return ", ".join(parts) + "".join(f" ({each} follows)" for each in followed)


def _described(run: Run, edit: Edit) -> str:
    """An edit of a key that no fact of the change stands at: a value that it replaces, or what it adds."""
    text = _on_one_line(edit)
    nodes = run.spec.root.walk() if _replaces(edit) else ()
    node = next((node for node in nodes if node.span == edit.span and node.key_path), None)
    if node is not None:
        return f"{node.key_path.rpartition('.')[2]} {_plain(node.plain())} -> {text}"
    return f"add {text.strip(', ')}"


def _on_one_line(edit: Edit) -> str:
    return " ".join(edit.text.replace("\\\r\n", " ").replace("\\\n", " ").split())


def _stands_at(edit: Edit, node: Node) -> bool:
    """Whether an edit is one of a value, and not of another key that it follows from."""
    return _replaces(edit) or edit.span[1:3] == node.span[3:5]


def _replaces(edit: Edit) -> bool:
    return edit.span[1:3] != edit.span[3:5]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def fix(run: Run, lever: Lever | None) -> list[Fix]:
    """The lever as a fix, in a list; [] where there is none or it saves next to nothing."""
    if lever is None:
        return []
    found = run.fix(describe(run, lever.changes), lever.safety, **lever.changes, **lever.implied)
    if run.estimate is None or found.device_bytes_after is None:
        return [found]
    after = run.what_if(**lever.changes, **lever.implied)
    return [found] if lower(run.estimate, after) and worthwhile(run, run.estimate, after) else []


def lower(before: Estimate, after: Estimate) -> bool:
    """Whether a change lowers the peak and leaves no more alive: with more alive, segments only happen to fall out
    better."""
    return after.device_bytes < before.device_bytes and after.comparable_bytes <= before.comparable_bytes


def worthwhile(run: Run, before: Estimate, after: Estimate) -> bool:
    """Whether a lower peak is worth a change of the config: a hundredth of it, or what the budget lacks."""
    fits = run.budget_bytes is not None and after.device_bytes <= run.budget_bytes < before.device_bytes
    saved = before.device_bytes - after.device_bytes
    return (run.over_budget and fits) or saved >= max(TRIFLE * before.device_bytes, 1)


def fixes(run: Run, *levers: Callable[[Run], Lever | None]) -> list[Fix]:
    """Those of the levers that apply and lower the peak, in the order given."""
    return [found for lever in levers for found in fix(run, lever(run))]


def plan(run: Run) -> Fix | None:
    """The first rungs of the ladder that together surely fit the budget; None where even all of them do not."""
    if run.budget_bytes is None or run.estimate is None:
        return None
    if _hopeless(run):
        return None
    changes: dict[Name, Any] = {}
    rungs: list[tuple[str, ...]] = []
    implied: set[str] = set()
    safeties: dict[str, str] = dict.fromkeys(_BATCH, DISPLAY)
    before = run.estimate
    for rung in LADDER:
        if rung is smaller_batch:  # shrunk on top of the changes so far
            if _can_shrink(run):
                tried = _shrink(run, changes)
                after = run.what_if(**tried)
                if lower(before, after):
                    changes, before = tried, after
                    rungs.append(_BATCH)
        else:
            lever = rung(run)
            if lever is None:
                continue
            tried = {**_compatible(run, changes, lever), **lever.changes, **lever.implied}
            if rung is small_optimizer:
                tried.pop("optimizer_implementation", None)  # torch's own switch, which other optimizers do not have
            after = run.what_if(**tried)
            if lower(before, after):
                changes, before = tried, after
                rungs.append((*lever.changes, *lever.implied))
                implied.update(lever.implied)
                safeties.update(dict.fromkeys((*lever.changes, *lever.implied), lever.safety))
        if before.device_bytes <= run.budget_bytes and run.fits_if(**changes):
            changes = _least(run, changes, rungs)
            safety = max((safeties[name] for name in changes), key=(SAFE, UNSAFE, DISPLAY).index)
            return _planned(run, changes, implied, safety)
    return None


def _compatible(run: Run, changes: dict[Name, Any], lever: Lever) -> dict[Name, Any]:
    """The changes that the lever does not write over: one key may state two facts, each value one of both."""
    new = {edit.span: edit.text for edit in run.edits(**lever.changes) if _replaces(edit)}
    kept = {}
    for name, value in changes.items():
        edits = run.edits(**{name: value}) if new else ()
        if not any(edit.span in new and edit.text != new[edit.span] for edit in edits):
            kept[name] = value
    return kept


# What a smaller micro batch changes.
_BATCH = ("micro_batch_size", "gradient_accumulation_steps", "evaluation_batch_size")


def _least(run: Run, changes: dict[Name, Any], rungs: list[tuple[str, ...]]) -> dict[Name, Any]:
    """Changes that fit, without those that are not needed, the most intrusive left out first; and with as large a
    batch as is left."""
    for names in reversed(rungs):
        lean = {name: value for name, value in changes.items() if name not in names}
        if lean and len(lean) < len(changes) and run.fits_if(**lean):
            changes = lean
    if len(rungs) < 2 or not any(name in changes for name in _BATCH):
        return changes
    again = _shrink(run, {name: value for name, value in changes.items() if name not in _BATCH})
    return again if run.fits_if(**again) else changes


def _hopeless(run: Run) -> bool:
    """Whether not even all rungs together fit. Looked at before one is tried after the other only where that is likely:
    where states exceed the budget."""
    assert run.estimate is not None
    assert run.budget_bytes is not None
    states = sum(run.estimate.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
    if states <= run.budget_bytes:
        return False
    changes: dict[Name, Any] = {}
    for rung in LADDER:
        if rung is smaller_batch:
            if _can_shrink(run):
                changes.update(with_evaluation(run, batch_changes(run, 1)))
            continue
        lever = rung(run)
        if lever is None:
            continue
        if len(_compatible(run, changes, lever)) < len(changes):
            return False  # one or the other, but not both
        changes.update({**lever.changes, **lever.implied})
        if rung is small_optimizer:
            changes.pop("optimizer_implementation", None)
    # What a loss in tiles, and the kernels that come with a fused one, may take off at most; what is live without it is
    # asked for anyway where the optimizer can be a smaller one.
    spared = run.activation_bytes if changes.get("loss") == "fused" else run.estimate.component_bytes("logits")
    rest = {name: value for name, value in changes.items() if name != "loss"}
    try:
        if 0 < len(rest) < len(changes) and run.allocated_if(**rest) - spared > run.budget_bytes:
            return True
        return run.allocated_if(**changes) > run.budget_bytes
    except UnknownModel:
        return False


def _planned(run: Run, changes: dict[Name, Any], implied: set[str], safety: str) -> Fix:
    written = {name: value for name, value in changes.items() if name not in implied}
    return run.fix(describe(run, written), safety, **changes)
