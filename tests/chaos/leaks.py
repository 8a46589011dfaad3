"""The resources that a daemon uses, and those that it still uses after it has recovered."""

from __future__ import annotations

import collections
import os
from contextlib import suppress
from dataclasses import dataclass

import psutil
from support.real_daemon import RunningDaemon

#: Resident memory of dispatcher and tritonserver may grow by this: allocators keep what they once had.
_GROWTH_BYTES = 64 << 20


@dataclass
class Holding:
    """The resources of one daemon at one moment."""

    processes: collections.Counter[str]
    descriptors: int
    threads: int
    regions: int
    lanes: int
    memory: int

    @classmethod
    def of(cls, daemon: RunningDaemon) -> Holding:
        """Return the resources of a daemon that is idle, or soon will be."""
        while daemon.process.poll() is None:
            with suppress(psutil.NoSuchProcess):  # one has ended while it was looked at
                return cls._seen(daemon)
        raise AssertionError("the daemon has ended")

    @classmethod
    def _seen(cls, daemon: RunningDaemon) -> Holding:
        dispatcher = psutil.Process(daemon.process.pid)
        children = daemon.children()
        server = [child for child in children if child.name() == "tritonserver"]
        return cls(
            # tritonserver does not reap a stub that was killed; it goes with tritonserver.
            processes=collections.Counter(
                child.name() for child in children if child.status() != psutil.STATUS_ZOMBIE
            ),
            descriptors=dispatcher.num_fds(),
            threads=dispatcher.num_threads(),
            regions=sum(
                entry.name.startswith(f"pytriton-{daemon.process.pid}-")
                for entry in os.scandir("/dev/shm")
            ),
            lanes=len(list(daemon.config.rundir.lanes.iterdir())),
            memory=sum(process.memory_info().rss for process in [dispatcher, *server]),
        )

    def too_much(self, since: Holding, slack: int = 0) -> list[str]:
        """Return the resources that have increased; the number of workers may vary by `slack`."""
        found = [
            f"{name}: {count} processes, were {since.processes[name]}"
            for name, count in self.processes.items()
            if count > since.processes[name] + slack
        ]
        for what in ("descriptors", "threads", "regions", "lanes"):
            now, before = getattr(self, what), getattr(since, what)
            # A few descriptors come with the first use of something (a log file, a connection).
            of_workers = {"descriptors": 8, "lanes": 3}.get(what, 0) * slack
            few = 8 if what == "descriptors" else 2 if what == "threads" else 0
            if now > before + few + of_workers:
                found.append(f"{what}: {now}, were {before}")
        if self.memory > since.memory + _GROWTH_BYTES:
            found.append(f"memory: + {(self.memory - since.memory) >> 20} MiB")
        return found
