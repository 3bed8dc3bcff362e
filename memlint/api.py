"""What ``import memlint`` gives: ``check``, ``estimate``, ``fit``, as the commands of those names, and ``Options``.

    report = memlint.check("configs", gpu="rtx4090")
    print(report)
    memlint.estimate("train.yaml", ["micro_batch_size=8"]).device_bytes
    memlint.fit("train.yaml", gpu="rtx4090").steps

Sizes are bytes. Nothing is printed, written or run; estimates are not kept between calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from memlint.check import check_paths
from memlint.reports.report import Report
from memlint.settings import Resolver, Settings, SettingsError, common_folder

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from memlint.fixes.search import Plan
    from memlint.plugin import Run
    from memlint.tape.estimate import Estimate

    Path = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """The settings of a call by name, as those of the command line: docs/settings.md says what each does.

    config    a settings file to trust and use, not the nearest
    isolated  read no settings file
    """

    config: str | os.PathLike[str]
    isolated: bool
    budget: str
    gpu: str
    host_budget: str
    model_config: str
    override: Sequence[str]
    select: Sequence[str]
    ignore: Sequence[str]
    extend_select: Sequence[str]
    extend_ignore: Sequence[str]
    per_file_ignores: Mapping[str, Sequence[str]]
    preview: bool
    no_ignores: bool
    require_ignore_reason: bool
    exclude: Sequence[str]
    extend_exclude: Sequence[str]
    force_exclude: bool
    baseline: str
    plugins: Sequence[str]
    rules: Mapping[str, Mapping[str, object]]
    work_limit: int


def check(paths: Path | Iterable[Path], **options: Unpack[Options]) -> Report:
    """``memlint check``: files and folders, settings files included.

    Raises SettingsError (a ValueError) for options that cannot be used; whatever is wrong with a config is in the
    Report.
    """
    named = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    places = [os.fspath(path) for path in named]
    resolver = _resolver(options)
    report = check_paths(places, resolver)
    return _without_known(report, resolver.for_path(common_folder(places)))


def estimate(path: Path, overrides: Sequence[str] = (), run: str = "", **options: Unpack[Options]) -> Estimate:
    """The predicted memory of the first run of a config, or of the run named ``run``.

    path       of the config
    overrides  ``key=value`` in the config's own keys
    Raises ValueError where there is no estimate to give, and says why.
    """
    if overrides:
        options["override"] = list(overrides)
    report = check_paths([os.fspath(path)], _resolver(options), formulas=True)
    for place, why in (*report.errors, *report.skipped):
        raise ValueError(f"{place}: {why}")
    for entry in report.runs:
        if run in ("", entry.run):
            if entry.estimate is not None:
                return entry.estimate
            said = [finding.message for finding in entry.findings if finding.code in ("MEM001", "MEM003", "MEM007")]
            raise ValueError(f"{path}: {said[0] if said else 'no estimate'}")
    raise ValueError(f"{path}: has no run named {run!r} ({', '.join(entry.run for entry in report.runs)})")


def fit(
    path: Path, run: str = "", allow_batch: bool = False, allow_length: bool = False, **options: Unpack[Options]
) -> Plan:
    """``memlint fit``: the least intrusive changes with which a config's first run, or the one named ``run``, surely
    fits ``budget`` or ``gpu``; where nothing does, the nearest ones, and ``fits`` is False.

    allow_batch, allow_length  also with another effective batch size, and with shorter samples
    Raises ValueError where there is no estimate or no budget, and says why.
    """
    from memlint.fixes import search

    found: list[Plan | str] = []

    def look(seen: Run) -> None:
        if found or run not in ("", seen.spec.run):
            return
        if seen.estimate is None:
            found.append(seen.spec.unknown_reason or "no estimate")
        elif seen.budget_bytes is None:
            found.append("there is no budget to fit: give budget or gpu")
        else:
            plan = search.plan(seen, search.Allowed(allow_batch, allow_length))
            found.append(plan or "no plan")

    options.setdefault("select", ["MEM003", "MEM007"])
    options.setdefault("work_limit", search.WORK_LIMIT)
    report = check_paths([os.fspath(path)], _resolver(options), details=False, look=look)
    for place, why in (*report.errors, *report.skipped):
        raise ValueError(f"{place}: {why}")
    if not found:
        names = ", ".join(entry.run for entry in report.runs)
        raise ValueError(f"{path}: has no run named {run!r} ({names})" if run else f"{path}: no training config")
    if isinstance(found[0], str):
        raise ValueError(f"{path}: {found[0]}")
    return found[0]


def _without_known(report: Report, settings: Settings) -> Report:
    from memlint import baseline

    try:
        path = baseline.stated(settings)
        return baseline.without(report, baseline.read(path), path).report if path else report
    except baseline.BaselineError as error:
        raise SettingsError(f"baseline {error}") from None


def _resolver(options: Mapping[str, Any]) -> Resolver:
    given = {key: value for key, value in options.items() if key not in ("config", "isolated")}
    values = {key.replace("_", "-"): list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    config = options.get("config", "")
    return Resolver(values, os.fspath(config) if config else "", options.get("isolated", False))
