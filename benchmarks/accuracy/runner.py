"""Every case through `check`, beside the peers: one offline command makes the report and docs/accuracy.md.

    python -m benchmarks.accuracy.runner [--json FILE] [--docs] [--peers BIN | --no-peers] [--only IDS]

A case is a folder of ``cases/`` with a config in its framework's own format, and a row of ``cases.csv``: which file is
checked, with which ``--gpu``, which of its runs, what was measured (bytes, and the counter they were read from), and
whether it is reported apart, with the reason. ``measured.csv`` has the published figure with its source, word for word
as far as it states the run. ``pairs.csv`` names cases that differ in one setting. Nothing else reaches the estimator:
the file goes through the same `check` as on the command line, without a settings file.

The error of a case is (predicted - measured) / measured, of the counter that was measured. A case without an estimate
is UNKNOWN: it is counted, and is never a hit.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COUNTERS = ("allocated", "reserved", "device")
# A pair whose measured difference is smaller than this share of the peak tells rounding from noise, not right from
# wrong: published figures have three digits.
SMALL_DIFFERENCE = 0.02
BUDGETS = (0.8, 0.95, 1.05, 1.25)  # times what was measured


class Case(NamedTuple):
    """One row of cases.csv. ``apart`` is why it is reported apart from the pool; "" where it belongs to it."""

    id: str
    source: str
    config: str
    gpu: str
    run: str
    counter: str
    measured_bytes: int
    apart: str
    note: str


class Result(NamedTuple):
    """What `check` says about a case. Without an estimate the sizes are None and ``unknown`` says why.

    facts       what the config states, by fact name
    components  bytes by component at the peak
    peers       peer -> (bytes or None, why not)
    """

    case: Case
    predicted_bytes: int | None
    low_bytes: int | None
    high_bytes: int | None
    unknown: str
    family: str
    model: str
    parameters: int
    trainable_parameters: int
    peak_phase: str
    components: dict[str, int]
    facts: dict[str, Any]
    seconds: float
    peers: dict[str, tuple[int | None, str]]

    @property
    def error(self) -> float | None:
        if self.predicted_bytes is None:
            return None
        return (self.predicted_bytes - self.case.measured_bytes) / self.case.measured_bytes

    @property
    def inside(self) -> bool:
        if self.low_bytes is None or self.high_bytes is None:
            return False
        return self.low_bytes <= self.case.measured_bytes <= self.high_bytes

    @property
    def width(self) -> float:
        return ((self.high_bytes or 0) - (self.low_bytes or 0)) / (self.predicted_bytes or 1)

    @property
    def under(self) -> bool:
        """More was measured than the whole interval allows."""
        return self.high_bytes is not None and self.case.measured_bytes > self.high_bytes


class Summary(NamedTuple):
    """Errors are shares (0.05 is 5 %); None where nothing was estimated. ``inside`` and ``under`` are of estimated.

    width  the median of how wide an interval is, as a share of its estimate
    """

    name: str
    cases: int
    unknown: int
    median: float | None
    p90: float | None
    worst_over: float | None
    worst_under: float | None
    inside: float | None
    under: float | None
    width: float | None


class Verdicts(NamedTuple):
    """What is said of the cases with a budget of ``factor`` times what was measured, as shares."""

    factor: float
    fits: float | None
    tight: float | None
    oom: float | None


class Pair(NamedTuple):
    """Two cases that differ in one setting. Bytes are second minus first; None where one of them is UNKNOWN.

    small  the measured difference is less than SMALL_DIFFERENCE of the peak
    """

    first: str
    second: str
    setting: str
    apart: bool
    measured_bytes: int
    predicted_bytes: int | None
    small: bool

    @property
    def sign_right(self) -> bool:
        return self.predicted_bytes is not None and (self.predicted_bytes > 0) == (self.measured_bytes > 0)

    @property
    def error(self) -> float | None:
        """Of the difference, in units of the measured one."""
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return abs(self.predicted_bytes - self.measured_bytes) / abs(self.measured_bytes)


class Comparison(NamedTuple):
    """A peer on the cases that it can be given, and memlint on the same ones."""

    peer: str
    cases: int
    median: float | None
    p90: float | None
    ours: float | None
    ours_p90: float | None
    unknown: int
    refused: dict[str, int]


# ------------------------------------------------------------------------------------------------- reading


def load_cases(folder: Path = HERE) -> list[Case]:
    """Raises ValueError for a row that cannot be a case."""
    cases = []
    with (folder / "cases.csv").open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["counter"] not in COUNTERS:
                raise ValueError(f"cases.csv: {row['id']}: counter {row['counter']!r}")
            values: dict[str, Any] = {**row, "measured_bytes": int(row["measured_bytes"])}
            case = Case(**values)
            if case.measured_bytes <= 0:
                raise ValueError(f"cases.csv: {case.id}: measured_bytes {case.measured_bytes}")
            if not (folder / "cases" / case.id / case.config).is_file():
                raise ValueError(f"cases.csv: {case.id}: no file cases/{case.id}/{case.config}")
            cases.append(case)
    return cases


def load_rows(name: str, folder: Path = HERE) -> list[dict[str, str]]:
    with (folder / name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


# ------------------------------------------------------------------------------------------------- running


def check_case(case: Case, folder: Path = HERE) -> Result:
    """One case through `memlint.check`, as the command line would put it."""
    import time

    from memlint.api import check as api_check

    path = folder / "cases" / case.id / case.config
    options: dict[str, Any] = {"gpu": case.gpu} if case.gpu else {}
    begin = time.perf_counter()
    report = api_check(str(path), isolated=True, **options)
    seconds = time.perf_counter() - begin
    run = next((run for run in report.runs if case.run in ("", run.run)), None)
    if run is None or run.estimate is None:
        told = [finding.message for finding in (run.findings if run is not None else ())]
        said = [finding.message for finding in (run.findings if run else ()) if finding.code in ("MEM001", "MEM007")]
        why = (*said, *(why for _, why in (*report.skipped, *report.errors, *report.unparsed)), *told)
        family, model = (run.family, run.model_name) if run is not None else ("", "")
        facts = {name: fact.value for name, fact in run.facts.items()} if run is not None else {}
        unknown = why[0] if why else f"no run named {case.run!r}"
        return Result(case, None, None, None, unknown, family, model, 0, 0, "", {}, facts, seconds, {})
    estimate = run.estimate
    interval = getattr(estimate, f"{case.counter}_interval")
    return Result(
        case,
        getattr(estimate, f"{case.counter}_bytes"),
        interval.low_bytes,
        interval.high_bytes,
        "",
        run.family,
        run.model_name,
        estimate.parameters,
        estimate.trainable_parameters,
        estimate.peak_phase,
        {component.name: component.size_bytes for component in estimate.components},
        {name: fact.value for name, fact in run.facts.items()},
        seconds,
        {},
    )


def _hub_id(config: dict[str, Any]) -> str:
    """The catalogue's first model of these shapes; "" if there is none."""
    from memlint.data import models

    shapes = ("model_type", "hidden_size", "dim", "num_hidden_layers", "vocab_size", "intermediate_size")
    wanted = {name: config.get(name) for name in shapes}
    for name in models.names():
        model = models.find(name)
        if model is not None and {key: model.config.get(key) for key in shapes} == wanted:
            return model.name
    return ""


def _hub_id_of(decoder: Any) -> str:
    """The catalogue's first model of the sizes of a ``memlint.architectures.decoder.Decoder``; "" if there is none."""
    from memlint.architectures import huggingface
    from memlint.data import models
    from memlint.facts.spec import UnknownModel

    shapes = ("width", "layers", "heads", "key_value_heads", "head_dim", "intermediate", "vocabulary", "qkv_bias")
    for name in models.names():
        model = models.find(name)
        try:
            known = huggingface.decoder(model.config) if model is not None else None
        except UnknownModel:
            continue
        if known is not None and all(getattr(known, shape) == getattr(decoder, shape) for shape in shapes):
            return model.name if model is not None else ""
    return ""


def ask_peers(result: Result, tools: Any) -> Result:
    from benchmarks.accuracy.peers import PEERS, Question
    from memlint.data import models
    from memlint.data.catalogue import parse_gpu

    config, decoder = result.facts.get("hyperparameters.config"), result.facts.get("decoder")
    model = _hub_id_of(decoder) if decoder is not None else ""
    if not isinstance(config, dict) and not model:
        reason = "the config states no model that memlint knows"
        return result._replace(peers={peer.name: (None, reason) for peer in PEERS})
    known = models.find(str(result.facts.get("model", "")))
    model = known.name if known is not None else model or _hub_id(config or {})
    found = models.find(model)
    question = Question(
        model,
        found.config if found is not None else config or {},
        result.facts,
        result.parameters,
        result.trainable_parameters,
        result.case.counter,
        parse_gpu(result.case.gpu)[0].usable_bytes if result.case.gpu else None,
    )
    answers: dict[str, tuple[int | None, str]] = {}
    for peer in PEERS:
        try:
            answer = peer.ask(question, tools)
        except KeyError as error:
            answers[peer.name] = (None, f"{error.args[0]} is not stated")
        else:
            answers[peer.name] = (answer.size_bytes, answer.reason)
    return result._replace(peers=answers)


# ------------------------------------------------------------------------------------------------- sums


def share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def percentile(values: Iterable[float], part: float) -> float | None:
    """The smallest value that at least ``part`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else None


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def summarise(name: str, results: Sequence[Result]) -> Summary:
    errors = [result.error for result in results if result.error is not None]
    known = [result for result in results if result.predicted_bytes is not None]
    sizes = [abs(error) for error in errors]
    return Summary(
        name,
        len(results),
        len(results) - len(known),
        median(sizes),
        percentile(sizes, 0.9),
        max((error for error in errors if error > 0), default=None),
        min((error for error in errors if error < 0), default=None),
        share([result.inside for result in known]),
        share([result.under for result in known]),
        median([result.width for result in known]),
    )


def evenly(sources: Sequence[Summary]) -> Summary:
    """The mean of the sources, in which each of them weighs as much as any other, however many cases it has."""

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    return Summary(
        "of sources",
        sum(source.cases for source in sources),
        sum(source.unknown for source in sources),
        mean(source.median for source in sources),
        mean(source.p90 for source in sources),
        max((source.worst_over for source in sources if source.worst_over is not None), default=None),
        min((source.worst_under for source in sources if source.worst_under is not None), default=None),
        mean(source.inside for source in sources),
        mean(source.under for source in sources),
        mean(source.width for source in sources),
    )


def verdicts(results: Sequence[Result]) -> list[Verdicts]:
    """The verdicts that intervals come to, of the counter that was measured."""
    known = [result for result in results if result.low_bytes is not None and result.high_bytes is not None]
    found = []
    for factor in BUDGETS:
        fits = [(result.high_bytes or 0) <= factor * result.case.measured_bytes for result in known]
        oom = [(result.low_bytes or 0) > factor * result.case.measured_bytes for result in known]
        tight = [not (one or other) for one, other in zip(fits, oom)]
        found.append(Verdicts(factor, share(fits), share(tight), share(oom)))
    return found


def pairs(results: Sequence[Result], rows: Iterable[dict[str, str]]) -> list[Pair]:
    """Pairs of which both cases were run."""
    by_id = {result.case.id: result for result in results}
    found = []
    for row in rows:
        if row["first"] not in by_id or row["second"] not in by_id:
            continue
        first, second = by_id[row["first"]], by_id[row["second"]]
        measured = second.case.measured_bytes - first.case.measured_bytes
        predicted = None
        if first.predicted_bytes is not None and second.predicted_bytes is not None:
            predicted = second.predicted_bytes - first.predicted_bytes
        size = max(first.case.measured_bytes, second.case.measured_bytes)
        found.append(
            Pair(
                row["first"],
                row["second"],
                row["setting"],
                bool(first.case.apart or second.case.apart),
                measured,
                predicted,
                abs(measured) < SMALL_DIFFERENCE * size,
            )
        )
    return found


def compare(results: Sequence[Result]) -> list[Comparison]:
    """Each peer on the cases that it answered, beside memlint on those of them that it knows."""
    names = list(dict.fromkeys(name for result in results for name in result.peers))
    found = []
    for name in names:
        theirs, ours, unknown = [], [], 0
        refused: dict[str, int] = {}
        for result in results:
            size, reason = result.peers.get(name, (None, "not asked"))
            if size is None:
                refused[reason] = refused.get(reason, 0) + 1
                continue
            theirs.append(abs(size - result.case.measured_bytes) / result.case.measured_bytes)
            if result.error is None:
                unknown += 1
            else:
                ours.append(abs(result.error))
        found.append(
            Comparison(
                name,
                len(theirs),
                median(theirs),
                percentile(theirs, 0.9),
                median(ours),
                percentile(ours, 0.9),
                unknown,
                dict(sorted(refused.items(), key=lambda entry: -entry[1])),
            )
        )
    return found


def constants() -> list[tuple[str, str, str]]:
    """(name, value, source) of every constant that is neither the config's nor PyTorch's own."""
    data = json.loads((ROOT / "memlint" / "data" / "overhead.json").read_text(encoding="utf-8"))
    found: list[tuple[str, str, str]] = []

    def look(node: Any, path: tuple[str, ...], source: str) -> None:
        if isinstance(node, dict):
            said = [node, *(child for child in node.values() if isinstance(child, dict))]
            source = next((str(place["source"]) for place in said if "source" in place), source)
            name = ".".join((*path, str(node["card"]))) if node.get("card") else ".".join(path)
            for key, value in node.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    found.append((name if key == "bytes" else f"{name}.{key}", f"{value:,}", source))
                elif isinstance(value, (dict, list)):
                    look(value, (*path, key), source)
        elif isinstance(node, list):
            for item in node:
                look(item, path, source)

    look(data, (), "")
    return found


class Outcome(NamedTuple):
    results: tuple[Result, ...]
    pooled: Summary
    apart: Summary
    everything: Summary
    sources: tuple[Summary, ...]
    even: Summary
    verdicts: tuple[Verdicts, ...]
    pairs: tuple[Pair, ...]
    comparisons: tuple[Comparison, ...]


def outcome(results: Sequence[Result], pair_rows: Iterable[dict[str, str]]) -> Outcome:
    pool = [result for result in results if not result.case.apart]
    names = list(dict.fromkeys(result.case.source for result in pool))
    sources = tuple(summarise(name, [result for result in pool if result.case.source == name]) for name in names)
    return Outcome(
        tuple(results),
        summarise("pooled", pool),
        summarise("apart", [result for result in results if result.case.apart]),
        summarise("all", results),
        sources,
        evenly(sources),
        tuple(verdicts(pool)),
        tuple(pairs(results, pair_rows)),
        tuple(compare(pool)),
    )


def as_json(found: Outcome) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        """JSON's own types; what is none of them as its text."""
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

    return {
        "pooled": found.pooled._asdict(),
        "apart": found.apart._asdict(),
        "all": found.everything._asdict(),
        "sources": [summary._asdict() for summary in found.sources],
        "of_sources": found.even._asdict(),
        "verdicts": [row._asdict() for row in found.verdicts],
        "pairs": [{**pair._asdict(), "sign_right": pair.sign_right, "error": pair.error} for pair in found.pairs],
        "peers": [comparison._asdict() for comparison in found.comparisons],
        "constants": [{"name": name, "value": value, "source": source} for name, value, source in constants()],
        "cases": [
            plain(
                {
                    **result.case._asdict(),
                    "predicted_bytes": result.predicted_bytes,
                    "low_bytes": result.low_bytes,
                    "high_bytes": result.high_bytes,
                    "error": result.error,
                    "inside": result.inside,
                    "unknown": result.unknown,
                    "family": result.family,
                    "model": result.model,
                    "parameters": result.parameters,
                    "trainable_parameters": result.trainable_parameters,
                    "peak_phase": result.peak_phase,
                    "components": result.components,
                    "seconds": result.seconds,
                    "peers": {name: {"bytes": size, "reason": why} for name, (size, why) in result.peers.items()},
                }
            )
            for result in found.results
        ],
    }


# ------------------------------------------------------------------------------------------------- command line


def percent(value: float | None, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def as_text(found: Outcome) -> str:
    lines = [
        f"{'':<12}{'cases':>6}{'UNKNOWN':>9}{'median':>9}{'p90':>9}{'over':>10}{'under':>10}{'inside':>9}{'beyond':>9}"
        f"{'width':>9}"
    ]
    for summary in (*found.sources, found.even, found.pooled, found.apart, found.everything):
        lines.append(
            f"{summary.name:<12}{summary.cases:>6}{summary.unknown:>9}{percent(summary.median):>9}"
            f"{percent(summary.p90):>9}{percent(summary.worst_over, True):>10}{percent(summary.worst_under, True):>10}"
            f"{percent(summary.inside):>9}{percent(summary.under):>9}{percent(summary.width):>9}"
        )
    for row in found.verdicts:
        said = f"FITS {percent(row.fits)}, TIGHT {percent(row.tight)}, OOM {percent(row.oom)}"
        lines.append(f"budget = {row.factor:.2f} x measured: {said}")
    lines.append("")
    for result in found.results:
        gib = f"{result.case.measured_bytes / 2**30:8.2f}"
        if result.predicted_bytes is None:
            lines.append(f"{result.case.id:<11}{gib}  UNKNOWN: {result.unknown}")
            continue
        where = "" if result.inside else " outside"
        low, high = (result.low_bytes or 0) / 2**30, (result.high_bytes or 0) / 2**30
        lines.append(
            f"{result.case.id:<11}{gib}{result.predicted_bytes / 2**30:9.2f}  {percent(result.error, True):>9}"
            f"  {low:.2f} to {high:.2f}{where}  {result.case.counter}, {result.peak_phase}"
            f"{', apart' if result.case.apart else ''}"
        )
    lines.append("")
    for pair in found.pairs:
        theirs = f"{pair.measured_bytes / 2**30:+.2f} GiB measured"
        ours = "UNKNOWN" if pair.predicted_bytes is None else f"{pair.predicted_bytes / 2**30:+.2f} predicted"
        size = " (small)" if pair.small else ""
        lines.append(f"{pair.first} -> {pair.second} {pair.setting}: {theirs}, {ours}, {percent(pair.error)}{size}")
    lines.append("")
    for comparison in found.comparisons:
        lines.append(
            f"{comparison.peer:<20}{comparison.cases:>4} cases, median {percent(comparison.median)};"
            f" memlint on the same {percent(comparison.ours)}, {comparison.unknown} UNKNOWN"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 for cases that cannot be read or options that make no sense."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--docs", action="store_true", help="write docs/accuracy.md and its plots")
    parser.add_argument("--peers", default="", help="bin folder of an environment that has the peers")
    parser.add_argument("--no-peers", action="store_true", help="do not ask them")
    parser.add_argument("--only", default="", help="ids, or the beginning of ids, with commas")
    chosen = parser.parse_args(arguments)
    try:
        cases = load_cases()
    except ValueError as error:
        parser.error(str(error))
    if chosen.only:
        wanted = tuple(chosen.only.split(","))
        cases = [case for case in cases if case.id.startswith(wanted)]
        if not cases:
            parser.error(f"no case begins with {chosen.only}")
        if chosen.docs:
            parser.error("--docs is of all cases")
    results = [check_case(case) for case in cases]
    if not chosen.no_peers:
        from benchmarks.accuracy.peers import Tools

        with tempfile.TemporaryDirectory() as scratch:
            tools = Tools(chosen.peers, Path(scratch))
            results = [ask_peers(result, tools) for result in results]
    found = outcome(results, load_rows("pairs.csv"))
    print(as_text(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(as_json(found), indent=2) + "\n", encoding="utf-8")
    if chosen.docs:
        from benchmarks.accuracy import strangers
        from benchmarks.accuracy.page import write

        write(found, ROOT / "docs", strangers.section(*strangers.both()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
