from __future__ import annotations

from collections.abc import Iterator

from memlint.dialects.unread import unread
from memlint.facts.spec import WRITTEN, Fact, named
from memlint.plugin import Example, Finding, Rule, Run


class UnreadKey(Rule):
    """unread-key: a key that by its name decides about memory, and that the estimate knows nothing of.

    ## What it does
    Fires on keys that no schema of the family has, where their names tell of sharing between devices, offloading,
    freezing, recomputation, quantisation or a tower beside the model.

    ## Why it matters
    The estimate is of the run without them: what such a key saves or costs is in none of its figures.

    ## Example
    `--tensor_parallel_size 4` of a program that reads its own options beside those of `TrainingArguments`.

    ## Use instead
    Nothing, if the program reads the key. Hold the figures against one measured step (`memlint check --probe`), and
    tell us of the key.

    ## Fix safety
    No fix: what the key does is known to the program alone.

    ## References
    The schemas of the families, in `schemas/`, with all keys of the library's release where that publishes them.
    """

    code = "MEM805"
    name = "unread-key"
    invalid = (
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("bf16: true", "bf16: true\nfreeze_lm_head: true"),),
            expect="freeze_lm_head",
        ),
        Example(
            "language_models/sft_trl.yaml",
            replace=(("bf16: true", "bf16: true\nmemory:\n  offload_share: 0.5"),),
            expect="offload_share",
        ),
    )
    valid = (
        Example("language_models/full_llamafactory.yaml"),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("bf16: true", "bf16: true\nfreeze_lm_head: false\ntensor_parallel_size: 1"),),
            note="they are off",
        ),
        Example(
            "language_models/full_llamafactory.yaml",
            replace=(("bf16: true", "bf16: true\nfreeze_vision_tower: true"),),
            note="the schema has it",
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        keys = unread(run.spec)
        if not keys:
            return
        facts = [Fact(named(one.name), one.value, WRITTEN, one.name, one.node) for one in keys]
        told = ", ".join(f"{one.name} {one.value}" for one in keys)
        what = " and ".join(dict.fromkeys(one.decides for one in keys))
        it, its, decides = (
            ("it", "its name it", "decides") if len(keys) == 1 else ("them", "their names they", "decide")
        )
        yield self.finding(
            run,
            f"{told}: not read, so that the estimate is without {it}; by {its} {decides} {what}",
            facts[0],
            related=facts[1:],
        )
