"""``memlint fit``: the least intrusive changes with which a run fits a budget, and how far it may grow in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from memlint.cli import options as shared
from memlint.named_tuple import NamedTuple
from memlint.units import format_bytes

if TYPE_CHECKING:
    from memlint.fixes.limits import Bracket, End
    from memlint.fixes.search import Allowed, Plan
    from memlint.plugin import Run
    from memlint.settings import Resolver
    from memlint.tape.estimate import Estimate

QUESTIONS = ("largest_batch", "longest_sequence", "fewest_cards", "smallest_card")


class Answer(NamedTuple):
    """What is said of one run: a plan, or where questions are asked, what each found.

    beyond  where no plan fits, the options with which one does, and that one; None where none of them helps
    """

    run: Run
    plan: Plan | None = None
    brackets: list[Bracket | None] = []  # noqa: RUF012
    beyond: tuple[str, Plan] | None = None


@click.command("fit", short_help="Find the least intrusive changes with which a config fits a card.")
@click.argument("path", metavar="CONFIG")
@shared.memory_options
@shared.settings_options
@click.option("--run", "run_name", default="", metavar="NAME", help="Only this run of a file with several.")
@click.option("--allow-batch", is_flag=True, help="Also plans with another effective batch size.")
@click.option("--allow-length", is_flag=True, help="Also plans with shorter samples.")
@click.option("--largest-batch", is_flag=True, help="Show the largest micro batch that fits, all else as it is.")
@click.option("--longest-sequence", is_flag=True, help="Show the longest sample that fits, all else as it is.")
@click.option("--fewest-cards", is_flag=True, help="Show from how many of the cards on it fits: 1, 2, 4, and so on.")
@click.option("--smallest-card", is_flag=True, help="Show the card with the least memory on which it fits as it is.")
@click.option("--output-format", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--patch", is_flag=True, help="Print the plan as a patch, and nothing else.")
@click.option("--apply", is_flag=True, help="Write the plan into the files.")
@shared.work_option
@shared.color_option
@shared.cached
def command(
    path: str,
    run_name: str,
    allow_batch: bool,
    allow_length: bool,
    output_format: str,
    patch: bool,
    apply: bool,
    color: str | None,
    work_limit: int | None,
    **options: Any,
) -> None:
    """Find the least intrusive changes with which CONFIG surely fits --gpu or --budget: free ones first, then what
    takes time, then what changes numerics, then the optimisation. The effective batch size stays.

    Exit code 0: it fits, as it is or with the plan. 1: nothing fits; the nearest plan is shown. 2: anything else.
    """
    from memlint.fixes.search import WORK_LIMIT, Allowed

    asked = [name for name in QUESTIONS if options.pop(name)]
    if (patch or apply) and asked:
        raise click.UsageError("--patch and --apply write a plan: they go with none of the questions")
    if patch and output_format == "json":
        raise click.UsageError("--patch prints a patch, and no JSON")
    resolver = shared.resolver({**options, "select": ["MEM003", "MEM007"], "work_limit": work_limit or WORK_LIMIT})
    allowed = Allowed(allow_batch, allow_length)
    answers = [
        one for one in _answers(path, resolver, allowed, asked, patch or apply) if run_name in ("", one.run.spec.run)
    ]
    if not answers:
        raise shared.Stop(f"{path}: has no run named {run_name!r}" if run_name else f"{path}: no training config")
    if (patch or apply) and len(answers) > 1:
        names = ", ".join(one.run.spec.run for one in answers)
        raise shared.Stop(f"{path}: has several runs, of which --run names the one to change ({names})")
    for run in (one.run for one in answers):
        if run.estimate is None:
            raise shared.Stop(f"{path}: no estimate: {run.spec.unknown_reason or 'see memlint check'}")
        if run.budget_bytes is None and asked != ["smallest_card"]:
            raise shared.Stop("there is no budget to fit: give --gpu or --budget (memlint gpus lists the cards)")
    code = 0
    if patch or apply:
        code = _write(path, resolver, answers[0], apply)
    if output_format == "json":
        shared.out(_as_json(answers, path, asked))
    elif not patch:
        from memlint.cli.output import style
        from memlint.reports.text import folded

        columns = style("never").columns
        lines = (folded(line, columns, 6) for one in answers for line in ("", *_said(one, path)))
        shared.out("\n".join(line for parts in lines for line in parts).lstrip("\n") + "\n")
    fits = all(one.plan.fits if one.plan else all(b and b.inside for b in one.brackets) for one in answers)
    raise SystemExit(code or (0 if fits else 1))


def _answers(path: str, resolver: Resolver, allowed: Allowed, asked: list[str], writes: bool) -> list[Answer]:
    """``writes``: a plan is written, and nobody reads what else would fit."""
    from memlint import work
    from memlint.check import check_paths
    from memlint.fixes import search
    from memlint.settings import SettingsError

    found: list[Answer] = []

    def look(run: Run) -> None:
        if run.estimate is None:
            found.append(Answer(run))
        elif asked:
            found.append(Answer(run, brackets=[_QUESTIONS[name](run) for name in asked]))
        else:
            plan = search.plan(run, allowed)
            asks = plan is not None and not plan.fits and not writes
            found.append(Answer(run, plan, beyond=_beyond(run, allowed) if asks else None))

    try:
        report = check_paths([path], resolver, details=False, look=look)
    except SettingsError as error:
        raise shared.Stop(str(error)) from None
    except work.OutOfWork as error:
        raise shared.Stop(f"{path}: {error}; --work-limit raises the limit") from None
    for place, why in (*report.errors, *report.skipped):
        raise shared.Stop(f"{place}: {why}")
    for finding in report.findings:
        if finding.code in ("MEM001", "MEM003", "MEM011"):
            raise shared.Stop(f"{finding.span.path}:{finding.span.line}: {finding.message}")
    return found


def _beyond(run: Run, allowed: Allowed) -> tuple[str, Plan] | None:
    """The options beside those given with which a plan fits, and that plan."""
    from memlint.fixes import search

    for more in (allowed._replace(batch=True), allowed._replace(length=True), search.Allowed(True, True)):
        plan = search.plan(run, more) if more != allowed else None
        if plan is not None and plan.fits:
            options = zip(("--allow-batch", "--allow-length"), allowed, more)
            return " ".join(option for option, before, after in options if after and not before), plan
    return None


def _card(run: Run) -> Bracket | None:
    from memlint.estimates import Estimates
    from memlint.fixes.limits import smallest_card

    def on(card: str) -> Estimate:
        return Estimates(run.spec, card).own()

    return smallest_card(run, on)


def _question(name: str) -> Callable[[Run], Bracket | None]:
    def ask(run: Run) -> Bracket | None:
        from memlint.fixes import limits

        found: Bracket | None = getattr(limits, name)(run)
        return found

    return ask


_QUESTIONS: dict[str, Callable[[Run], Bracket | None]] = {
    "largest_batch": _question("largest_batch"),
    "longest_sequence": _question("longest_sequence"),
    "fewest_cards": _question("fewest_devices"),
    "smallest_card": _card,
}


# -- what is said


def _said(answer: Answer, path: str) -> Iterator[str]:
    from memlint.reports.text import clean

    run = answer.run
    assert run.estimate is not None
    budget = f" of {format_bytes(run.budget_bytes)}" if run.budget_bytes is not None else ""
    name = path if run.spec.run == "train" else f"{path} [{run.spec.run}]"
    yield f"{clean(name)}: {run.verdict}, peak {_peak(run.estimate)}{budget}"
    for bracket in answer.brackets:
        yield from _bracket(bracket)
    if answer.plan is not None:
        yield from _plan(answer.plan, run)
    if answer.beyond is not None:
        option, plan = answer.beyond
        yield f"  with {option} it fits: peak {_peak(plan.estimate)}"
        yield from _steps(plan)


def _as_json(answers: list[Answer], path: str, asked: list[str]) -> str:
    """Version 1, ``schemas/fit.schema.json``: each run with its peak, and a plan or the brackets of the questions."""
    import json

    from memlint import __version__
    from memlint.fixes.search import TIER_WORDS

    def sizes(estimate: Estimate) -> dict[str, object]:
        low, high = estimate.device_interval
        return {"device_bytes": estimate.device_bytes, "low_bytes": low, "high_bytes": high}

    def end(one: End | None) -> dict[str, object] | None:
        if one is None:
            return None
        peak = None if one.estimate is None else sizes(one.estimate)
        return {"value": one.value.replace(",", ""), "peak": peak, "reason": one.reason}

    runs: list[dict[str, object]] = []

    def changed(plan: Plan) -> dict[str, object]:
        steps = [{"change": step.said, "tier": TIER_WORDS[step.tier]} for step in plan.steps]
        return {"fits": plan.fits, "steps": steps, "peak": sizes(plan.estimate)}

    for answer in answers:
        run = answer.run
        assert run.estimate is not None
        said: dict[str, object] = {
            "path": path,
            "run": run.spec.run,
            "verdict": run.verdict,
            "budget_bytes": run.budget_bytes,
            "peak": sizes(run.estimate),
        }
        if answer.plan is not None:
            said["plan"] = changed(answer.plan)
        if answer.beyond is not None:
            option, plan = answer.beyond
            said["plan_beyond"] = {"options": option.split(), **changed(plan)}
        for name, bracket in zip(asked, answer.brackets):
            said[name] = None if bracket is None else {"inside": end(bracket.inside), "outside": end(bracket.outside)}
        runs.append(said)
    report = {"version": 1, "tool": {"name": "memlint", "version": __version__}, "runs": runs}
    return json.dumps(report, indent=2, ensure_ascii=True) + "\n"


def _plan(plan: Plan, run: Run) -> Iterator[str]:
    assert run.budget_bytes is not None
    if plan.fits and not plan.steps:
        yield "  it fits as it is: nothing to change"
        return
    if plan.fits:
        yield f"  fits with {len(plan.steps)} change{'s' * (len(plan.steps) != 1)}: peak {_peak(plan.estimate)}"
    else:
        over = plan.estimate.device_interval.high_bytes - run.budget_bytes
        yield f"  nothing that this config can state surely fits: {format_bytes(over)} too much at the nearest"
        if plan.steps:
            yield f"  nearest plan: peak {_peak(plan.estimate)}, {plan.estimate.verdict(run.budget_bytes)}"
    yield from _steps(plan)


def _steps(plan: Plan) -> Iterator[str]:
    from memlint.fixes.search import TIER_WORDS
    from memlint.reports.text import clean

    for step in plan.steps:
        yield f"    {clean(step.said)}  ({TIER_WORDS[step.tier]})"


def _bracket(bracket: Bracket | None) -> Iterator[str]:
    if bracket is None:
        yield "  it states no number to search from"
        return
    if bracket.inside is not None:
        yield f"  {bracket.what} {_end(bracket.inside)}: fits"
    else:
        yield f"  {bracket.what}: none fits"
    if bracket.outside is not None:
        yield f"  {bracket.what} {_end(bracket.outside)}: {bracket.outside.reason or 'does not fit'}"


def _end(end: End) -> str:
    return end.value if end.estimate is None else f"{end.value}, peak {_peak(end.estimate)}"


def _peak(estimate: Estimate) -> str:
    low, high = estimate.device_interval
    return f"{format_bytes(estimate.device_bytes)} ({format_bytes(low)} to {format_bytes(high)})"


# -- what is written


def _write(path: str, resolver: Resolver, answer: Answer, apply: bool) -> int:
    """Write the plan, or print it as a patch, once the changed texts are checked to give what it says."""
    from memlint.cli import fixing, output
    from memlint.fixing import planned

    run, plan = answer.run, answer.plan
    if plan is None or not plan.edits:
        return 0
    if not plan.fits:
        raise shared.Stop(f"{path}: no plan fits, so none is written")
    made = planned(path, resolver, run, plan)
    if isinstance(made, str):
        raise shared.Stop(f"{path}: not written: {made}")
    if apply:
        output.exchange_files(made)
    else:
        shared.out("".join(fixing.patch(made)))
    return 0
