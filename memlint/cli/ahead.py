"""``--jobs``: other processes estimate ahead, and this one checks.

A check goes through its files in order. Each other process takes a share of those that come last, estimates them and
leaves the answers in the cache (:mod:`memlint.cache`), where this process finds them when it gets there. So a report is
made by one process, whatever the number of jobs, and is the same to the byte; what another process fails at is
estimated here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memlint.cli.progress import Progress
from memlint.estimates import EqualRuns, kept_in

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from memlint.discover import Found
    from memlint.settings import Resolver

    Watch = Callable[[int, Sequence[Found]], None]

FEW = 4  # files for which no process is started
SAVED_EVERY = 4  # files, by a process that estimates ahead
SHOWN_EVERY_SECONDS = 0.1


@contextlib.contextmanager
def watching(
    folder: str, jobs: int, paths: Sequence[str], resolver: Resolver, formulas: bool, details: bool, quiet: bool
) -> Iterator[Watch]:
    """What a check is to tell how far it is: it shows the progress, and starts the other processes once the files are
    known. They are ended with it. ``folder``: of the cache, "" for none."""
    progress = Progress(quiet)
    processes: list[BaseProcess] = []
    shown = 0.0

    def watch(done: int, files: Sequence[Found]) -> None:
        nonlocal shown
        if done == 0 and jobs > 1 and len(files) >= FEW:
            processes.extend(_started([file.path for file in files], paths, resolver, folder, formulas, details, jobs))
        if progress.on and len(files) >= FEW and time.monotonic() >= shown + SHOWN_EVERY_SECONDS:
            shown = time.monotonic()
            progress(f"{done} of {len(files)} files, {files[done].path}")

    with contextlib.ExitStack() as ends:
        if jobs > 1 and not folder:
            import tempfile

            folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="memlint-"))
        if folder:
            ends.enter_context(kept_in(folder))
        try:
            yield watch
        finally:
            progress.clear()
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()


def _started(
    files: list[str],
    paths: Sequence[str],
    resolver: Resolver,
    folder: str,
    formulas: bool,
    details: bool,
    jobs: int,
) -> list[BaseProcess]:
    """A process for each share but the first one. A process starts at the end of its share, so that this one, where it
    comes there early, goes on at the other end."""
    import multiprocessing

    # To copy a process is ten times as quick as to begin one, and safe where it has no other threads.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    shares = [files[len(files) * n // jobs : len(files) * (n + 1) // jobs] for n in range(1, jobs)]
    processes = []
    with contextlib.suppress(OSError):  # no more processes: then this one does more
        for share in filter(None, shares):
            arguments = (share[::-1], list(paths), resolver, folder, formulas, details)
            process = context.Process(target=_estimate, args=arguments, daemon=True)
            process.start()
            processes.append(process)
    return processes


def _estimate(
    files: list[str], paths: list[str], resolver: Resolver, folder: str, formulas: bool, details: bool
) -> None:
    """Check some files for the sake of what is estimated for them. Nothing is said: the check itself will say it."""
    import signal

    from memlint.check import check_paths

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the check, which ends this process
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    with kept_in(folder), contextlib.suppress(Exception):
        runs = EqualRuns()
        for first in range(0, len(files), SAVED_EVERY):
            some = files[first : first + SAVED_EVERY]
            check_paths(some, resolver, formulas=formulas, details=details, equal_runs=runs, named=paths)
