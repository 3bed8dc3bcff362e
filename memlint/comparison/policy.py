"""What a change may cost: policies and waivers of the settings, and what they say of a comparison."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable

from memlint.comparison.model import ADDED, REMOVED, Change, Comparison
from memlint.discover import matches
from memlint.named_tuple import NamedTuple
from memlint.settings import Policy, Waiver
from memlint.tape.estimate import OOM, TIGHT
from memlint.units import format_bytes

FAIL = "fail"
WARN = "warn"
WAIVED = "waived"


class Verdict(NamedTuple):
    """One policy that a run breaks, or one waiver that is past its end.

    action  what it comes to: ``fail``, ``warn``, or ``waived``
    change  None for a waiver
    said    what is wrong, and who waived it until when
    """

    action: str
    change: Change | None
    said: str


def judge(
    comparison: Comparison, policies: Iterable[Policy], waivers: Iterable[Waiver], root: str, today: datetime.date
) -> list[Verdict]:
    """What the policies say of each run, failures first.

    root   the folder that paths of the comparison are relative to, which patterns are held against
    today  a waiver holds to the end of its last day
    """
    waivers = list(waivers)
    found = [
        Verdict(
            FAIL, None, f"the waiver of {waiver.owner} for {_listed(waiver)} ended on {waiver.until}: {waiver.reason}"
        )
        for waiver in waivers
        if waiver.until < today
    ]
    holding = [waiver for waiver in waivers if waiver.until >= today]
    for change in comparison.changes:
        path = os.path.join(root, change.key[0])
        for policy in policies:
            if policy.paths and not matches(policy.paths, path):
                continue
            said = _broken(policy, change)
            if not said:
                continue
            waiver = next((one for one in holding if matches(one.paths, path)), None)
            if waiver is None:
                found.append(Verdict(policy.action, change, said))
            else:
                by = f"{said} (waived by {waiver.owner} until {waiver.until}: {waiver.reason})"
                found.append(Verdict(WAIVED, change, by))
    return sorted(found, key=lambda verdict: (FAIL, WARN, WAIVED).index(verdict.action))


def _listed(waiver: Waiver) -> str:
    return ", ".join(pattern.glob for pattern in waiver.paths)


def _broken(policy: Policy, change: Change) -> str:
    """What a run does that a policy does not allow; "" for nothing. A run that is gone does nothing."""
    if change.kind == REMOVED:
        return ""
    if policy.no_estimate and change.lost_estimate:
        return f"there is no estimate any more: {change.newest.why}"
    if policy.over_budget and change.newest.budget_bytes is not None and change.newest.device_bytes is not None:
        counted = (OOM, TIGHT) if policy.over_budget == "tight" else (OOM,)
        if change.newest.verdict in counted and (change.kind == ADDED or change.before != change.after):
            size, budget = change.newest.device_bytes, change.newest.budget_bytes
            return f"{change.newest.verdict}: {format_bytes(size)} of {format_bytes(budget)}"
    delta = change.delta_bytes
    limits = []
    if delta is None or delta <= 0 or change.before is None or change.before.device_bytes is None:
        return ""
    if policy.increase_bytes is not None:
        limits.append((delta > policy.increase_bytes, format_bytes(policy.increase_bytes)))
    if policy.increase_percent is not None:
        share = 100 * delta
        limits.append((share > policy.increase_percent * change.before.device_bytes, f"{policy.increase_percent:g} %"))
    if limits and all(exceeded for exceeded, _ in limits):
        allowed = " and ".join(limit for _, limit in limits)
        return f"{signed(delta)} ({percent(change)}), and {allowed} {'is' if len(limits) == 1 else 'are'} allowed"
    return ""


def signed(size: int) -> str:
    """``+1.50 GiB``; a change always has its sign."""
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


def percent(change: Change) -> str:
    """How much a peak grew, of what it was: ``+12.5 %``."""
    if change.before is None or not change.before.device_bytes or change.delta_bytes is None:
        return ""
    return f"{100 * change.delta_bytes / change.before.device_bytes:+.1f} %"


def exit_code(verdicts: Iterable[Verdict], failed_to_read: bool) -> int:
    """0 nothing that fails, 1 a policy that fails or a waiver past its end, 2 the new side could not be read whole."""
    if failed_to_read:
        return 2
    return 1 if any(verdict.action == FAIL for verdict in verdicts) else 0
