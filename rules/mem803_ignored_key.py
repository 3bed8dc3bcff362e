from __future__ import annotations

from collections.abc import Iterator

from memlint.dialects import registry
from memlint.dialects.trees import find
from memlint.facts.spec import WRITTEN, Fact, named
from memlint.plugin import Example, Finding, Rule, Run

NAMED = 3  # keys that a message names


class IgnoredKey(Rule):
    """ignored-key: the model that the config names does not read this key.

    ## What it does
    Fires on keys that belong to another model of the same code base.

    ## Why it matters
    Who changes such a key to save memory changes nothing, and looks for the cause elsewhere.

    ## Example
    A patch size of the image transformer in a config that builds the video transformer.

    ## Use instead
    The key of the model that is built.

    ## Fix safety
    No fix: which key was meant is yours to say.

    ## References
    The code bases whose schemas name such keys (`ignored` in `memlint/schemas`).
    """

    code = "MEM803"
    name = "ignored-key"
    needs_estimate = False
    invalid = (
        Example("dit3d/config.py", expect="UNET_DIM"),
        Example(
            "lag_mode/train_lag_mode.sh",
            replace=(("--batch_size", "--use_fp16 True --batch_size"),),
            expect="--use_fp16",
        ),
    )
    valid = (
        Example("lag_mode/train_lag_mode.sh"),
        Example("language_models/sft_trl.yaml", note="every key of it is read"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.spec.architecture is None:
            return  # which model is built is not known
        groups: dict[str, list[Fact]] = {}
        for key in registry.dialect(run.spec.family).keys:
            why = str(key.annotation.get("ignored", ""))
            node = find(run.spec.root, key.dotted) if why else None
            if node is not None and node.plain() not in (None, False):
                groups.setdefault(why, []).append(Fact(named(key.dotted), node.plain(), WRITTEN, key.dotted, node))
        for why, stated in groups.items():
            names = ", ".join(fact.label for fact in stated[:NAMED])
            if len(stated) > NAMED:
                names += f" and {len(stated) - NAMED} more keys"
            has = "has" if len(stated) == 1 else "have"
            yield self.finding(run, f"{names} {has} no effect: {why}", stated[0], related=stated[1:])
