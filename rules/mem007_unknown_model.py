from __future__ import annotations

from collections.abc import Iterator

from memlint.documents.node import Span
from memlint.partial import Partial
from memlint.plugin import INFO, Example, Finding, Rule, Run
from memlint.units import format_bytes

LONGEST = "the longest sample is"


MAX_ALSO = 5


class UnknownModel(Rule):
    """unknown-model: there is no estimate for this run.

    ## What it does
    Says why the run has no estimate: its model, or a size that the estimate cannot do without, is not known.

    ## Why it matters
    UNKNOWN is an answer; a guess would not be one. Rules that need no estimate still run.

    ## Example
    A frame limit of `null`: the number of tokens has no bound.

    ## Use instead
    State the value, in the config or with `-o key=value`.

    ## Fix safety
    No fix.

    ## References
    `memlint explain` on a config with an estimate shows what it is made of.
    """

    code = "MEM007"
    name = "unknown-model"
    severity = INFO
    needs_estimate = False
    invalid = (
        Example("video_llm/config_before.yaml", replace=(("    max_seq_length: 8192     # Gemma's context\n", ""),)),
    )
    valid = (
        Example("video_llm/config_before.yaml"),
        Example("video_llm/config.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None and run.spec.family:
            reason = run.spec.unknown_reason or "the model is not known"
            # The longest sample is known to whoever knows the data.
            notes = self._also(run, reason)
            notes += [f"`-o {reason.split()[0].lstrip('-')}=2048` tries a length"] if LONGEST in reason else []
            known = "no estimate" if run.partial is None else _range(run.partial, run.budget_bytes)
            found = self.finding(run, f"{known}: {reason}", run.at_fault, notes=notes)
            yield found._replace(related=tuple(_named(run, reason, found.span)))

    def _also(self, run: Run, reason: str) -> list[str]:
        """The values that are not known either, each with why."""
        word = reason.partition(" ")[0].rstrip(":,")
        others = [one for one in run.spec.missing if not one.refused and not one.ours and one.key != word]
        if not others:
            return []
        shown = "; ".join(f"{missing.key} ({missing.reason})" for missing in others[:MAX_ALSO])
        more = f"; and {len(others) - MAX_ALSO} more" if len(others) > MAX_ALSO else ""
        return [f"not known before the run either: {shown}{more}"]


def _range(partial: Partial, budget_bytes: int | None) -> str:
    """From the least to the most of what is known, and what fits."""
    if partial.at_least:
        first, last = partial.rows[0], partial.rows[-1]
        told = [f"{format_bytes(row.device_bytes)} {row.told(partial.names)}".strip() for row in (first, last)]
        return "at least " + ", ".join(dict.fromkeys(told))
    ends = sorted(partial.rows, key=lambda row: row.device_bytes)
    told = [f"{format_bytes(row.device_bytes)} {row.told(partial.names)}" for row in (ends[0], ends[-1])]
    fits = ""
    if partial.most is not None and budget_bytes is not None:
        size = format_bytes(budget_bytes)
        fits = f", fits {size} up to {partial.most:,} tokens" if partial.most else f", fits {size} at no length"
    known = "no single estimate" if len(partial.rows) > 1 else "no sure estimate"
    return f"{known}: {', '.join(dict.fromkeys(told))}{fits}"


def _named(run: Run, reason: str, place: Span) -> Iterator[tuple[Span, str]]:
    """The values of the keys that a reason names, where they stand on other lines: also those of variables."""
    words = {word.strip("(),:;") for word in reason.split()}
    lines = {(place.path, place.line)}
    stated = [fact for fact in run.spec.facts.values() if fact.node is not None and set(fact.key) & set("-_.")]
    places = [
        (fact.node.span, f"{fact.label}: {fact.written}")
        for fact in stated
        if fact.node is not None and fact.key in words
    ]
    # What is not known for the same reason is where that began: a value that others are made of.
    places += [
        (missing.span, f"{missing.key}: {missing.reason}")
        for missing in run.spec.missing
        if missing.key in words or missing.reason in reason
    ]
    for span, label in places:
        if (span.path, span.line) not in lines:
            lines.add((span.path, span.line))
            yield span, label
