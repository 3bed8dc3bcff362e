"""``--jobs``: other processes check files, and this one takes what they found.

A check goes through its files in order. The other processes take those that come last, and send what each of them adds
to the report (:class:`memlint.checking.invocation.Outcome`); this process gathers it when it gets there. So a report is
made by one process, whatever the number of jobs, and is the same to the byte; what another process fails at, or cannot
tell without the files before it, is checked here. What they estimate goes to the cache (:mod:`memlint.cache`) as well,
where a closer look finds it. Each time a process comes back it takes a smaller share, so that all of them end at the
same time, whatever files cost; the last files, which take less than another process's beginning, are left to the check.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from memlint.check import Wanted
    from memlint.checking.invocation import Asked, Outcome
    from memlint.discover import Found
    from memlint.settings import Resolver

FEW = 4  # files for which no process is started
SENT_EVERY = 4  # files, by another process
# Another process records the first run of each kind once more, which takes about as long: what the check itself will
# have done by then is not worth it.
WORTHWHILE_SECONDS = 0.1


class Task(NamedTuple):
    """What another process has to know.

    folder  of the cache
    wanted  all files of the check
    files   those of them that are checked now
    """

    paths: Sequence[str]
    resolver: Resolver
    folder: str
    asked: Asked
    wanted: Wanted
    files: Sequence[Found]


class Jobs:
    """The processes of one check. ``folder``: of the cache."""

    def __init__(self, count: int, paths: Sequence[str], resolver: Resolver, folder: str) -> None:
        self.count = count
        self._paths = list(paths)
        self._resolver = resolver
        self._folder = folder

    @contextlib.contextmanager
    def share(
        self, wanted: Wanted, files: Sequence[Found], asked: Asked
    ) -> Iterator[Callable[[int], Outcome | None] | None]:
        """Other processes at work on some files of a check, which are ended with it. They give what one of the files,
        counted from the first, adds to the report; None for one that this process has to check. None in place of that
        where none is started."""
        if self.count < 2 or len(files) < FEW:
            yield None
            return
        import multiprocessing

        from memlint.cache import Cache

        # To copy a process is ten times as quick as to begin one, and safe where it has no other threads.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        # Two that make the cache's file at once hold each other up, and one goes on without it.
        if (made := Cache.of(self._folder)) is not None:
            made.close()
        pile = Pile(context, len(files), self.count)
        processes: list[BaseProcess] = []
        connections: list[Connection] = []
        try:
            with contextlib.suppress(OSError):  # no more processes: then this one does more
                for _ in range(1, self.count):
                    task = Task(self._paths, self._resolver, self._folder, asked, wanted, files)
                    here, there = context.Pipe(duplex=False)
                    connections.append(here)
                    process = context.Process(target=check_elsewhere, args=(pile, there, task), daemon=True)
                    process.start()
                    processes.append(process)
                    there.close()  # so that the end of the process is the end of what it says
            yield Gathered(pile, connections).outcome
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            for connection in connections:
                connection.close()


class Pile:
    """The files of a check, by number: it takes them from the front, and other processes from the end."""

    def __init__(self, context: Any, count: int, jobs: int) -> None:
        self.jobs = jobs
        self._begun = time.monotonic()
        self._first = context.Value("q", 0)  # that is not taken from the front
        self._behind = context.Value("q", count)  # the first of those that are taken from the end

    def take(self, number: int) -> bool:
        """Take one from the front. Whether nobody else has it."""
        with self._behind.get_lock():
            if number >= self._behind.value:
                return False
            self._first.value = number + 1
            return True

    def share(self) -> range:
        """Take a process's part of half of those that are left; nothing where the check will soon have done them."""
        with self._behind.get_lock():
            end, first = self._behind.value, self._first.value
            left = max(0, end - first)
            if first and left * (time.monotonic() - self._begun) / first < WORTHWHILE_SECONDS:
                return range(end, end)
            self._behind.value = end - min(left, max(1, left // (2 * self.jobs)))
            return range(self._behind.value, end)


class Gathered:
    """What other processes have sent."""

    def __init__(self, pile: Pile, connections: Sequence[Connection]) -> None:
        self._pile = pile
        self._open = list(connections)
        self._outcomes: dict[int, Outcome | None] = {}

    def outcome(self, number: int) -> Outcome | None:
        """Of one file, once it is there; None where this process has to check it."""
        self._receive(0.0)
        if number not in self._outcomes and self._pile.take(number):
            return None
        while number not in self._outcomes and self._open:
            self._receive(None)
        return self._outcomes.pop(number, None)

    def _receive(self, timeout_s: float | None) -> None:
        from multiprocessing.connection import wait

        ready = wait(self._open, timeout_s)
        for connection in [one for one in self._open if one in ready]:
            try:
                self._outcomes.update(connection.recv())
            except Exception:  # it has ended, in the middle of a word or after the last one
                self._open.remove(connection)


def check_elsewhere(pile: Pile, connection: Connection, task: Task) -> None:
    """Check shares of the files, and send what comes of it. Nothing is said: the check itself will say it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the check, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (as long as the process)
    from concurrent.futures import ThreadPoolExecutor

    from memlint.check import outcomes
    from memlint.estimates import EqualRuns, kept_in

    def numbers() -> Iterator[list[int]]:
        while share := pile.share():
            for at in range(0, len(share), SENT_EVERY):
                yield list(share[at : at + SENT_EVERY])

    # A pipe holds 64 KiB, and the check empties it between two of its files: nobody is to wait for that.
    with ThreadPoolExecutor(1) as sender, kept_in(task.folder), contextlib.suppress(Exception):
        runs = EqualRuns()
        with outcomes(task.paths, task.resolver, task.asked, task.wanted, runs) as outcome:
            for part in numbers():
                found = {number: outcome(task.files[number]) for number in part}
                runs.save()  # before it is known here: who looks closer at a file finds it
                sender.submit(connection.send, found)
    connection.close()
