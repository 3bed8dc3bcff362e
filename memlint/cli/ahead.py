"""``--jobs``: other processes estimate ahead, and this one checks.

A check goes through its files in order. The other processes take those that come last, estimate them and leave the
answers in the cache (:mod:`memlint.cache`), where this process finds them when it gets there. So a report is made by
one process, whatever the number of jobs, and is the same to the byte; what another process fails at is estimated here.
Each time a process comes back it takes a smaller share, so that all of them end at the same time, whatever files cost.
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
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from memlint.discover import Found
    from memlint.settings import Resolver

    Watch = Callable[[int, Sequence[Found]], None]

FEW = 4  # files for which no process is started
SAVED_EVERY = 4  # files, by a process that estimates ahead
SHOWN_EVERY_SECONDS = 0.1


class Wants(NamedTuple):
    """What a check is asked for, which ``check_paths`` explains; ``glances``: whether it has a ``closer``."""

    formulas: bool
    details: bool
    glances: bool


@contextlib.contextmanager
def watching(
    folder: str, jobs: int, paths: Sequence[str], resolver: Resolver, wants: Wants, quiet: bool
) -> Iterator[Watch]:
    """What a check is to tell how far it is: it shows the progress, and starts the other processes once the files are
    known. They are ended with it. ``folder``: of the cache, "" for none."""
    progress = Progress(quiet)
    processes: list[BaseProcess] = []
    pile: Pile | None = None
    shown = 0.0

    def watch(done: int, files: Sequence[Found]) -> None:
        nonlocal shown, processes, pile
        if done == 0 and jobs > 1 and len(files) >= FEW:
            import multiprocessing

            from memlint.cache import Cache

            # To copy a process is ten times as quick as to begin one, and safe where it has no other threads.
            context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
            pile = Pile(context, [file.path for file in files], jobs)
            # Two that make the cache's file at once hold each other up, and one goes on without it.
            if (made := Cache.of(folder)) is not None:
                made.close()
            processes = _started(pile, context, paths, resolver, folder, wants)
        if pile is not None:
            pile.done.value = done
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


class Pile:
    """The files of a check, which goes through them from the front, while other processes take theirs from the end.

    done  how many of them the check is through with
    left  how many, from the front, nobody else has taken
    """

    def __init__(self, context: Any, files: list[str], jobs: int) -> None:
        self.files = files
        self.jobs = jobs
        self.done = context.Value("q", 0)
        self.left = context.Value("q", len(files))

    def take(self) -> list[str]:
        """Half of a process's part of those that are left, the last one first: that is where the check comes last."""
        with self.left.get_lock():
            done, last = self.done.value, self.left.value
            first = max(done, last - max(SAVED_EVERY, (last - done) // (2 * self.jobs)))
            self.left.value = min(first, last)
        return self.files[first:last][::-1]


def _started(
    pile: Pile, context: Any, paths: Sequence[str], resolver: Resolver, folder: str, wants: Wants
) -> list[BaseProcess]:
    processes = []
    with contextlib.suppress(OSError):  # no more processes: then this one does more
        for _ in range(1, pile.jobs):
            arguments = (pile, list(paths), resolver, folder, wants)
            process = context.Process(target=_estimate, args=arguments, daemon=True)
            process.start()
            processes.append(process)
    return processes


def _estimate(pile: Pile, paths: list[str], resolver: Resolver, folder: str, wants: Wants) -> None:
    """Check some files for the sake of what is estimated for them. Nothing is said: the check itself will say it."""
    import signal

    from memlint.check import check_paths

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the check, which ends this process
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    with kept_in(folder), contextlib.suppress(Exception):
        runs = EqualRuns()

        def leave(done: int, files: Sequence[Found]) -> None:
            if done % SAVED_EVERY == 0:
                runs.save()

        while share := pile.take():
            check_paths(
                share,
                resolver,
                formulas=wants.formulas,
                details=wants.details,
                closer=(lambda seen: ()) if wants.glances else None,
                equal_runs=runs,
                named=paths,
                progress=leave,
                ahead=True,
            )
