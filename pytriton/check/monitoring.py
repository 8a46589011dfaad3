"""Logs the resource usage of a process and its children, for long tests and for reports."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import psutil

_MIB = 1 << 20


class ProcessMonitoring:
    """Logger of the resource usage of a process and its children.

    Args:
        logger: the logger to use
        process: the process; None: this one
        loglevel: log level of the lines
        custom_monitors: functions that are called with the logger on each dump, to log further facts

    Example:
        >>> import logging
        >>> ProcessMonitoring(logging.getLogger("monitoring")).get_restarted_children()
        []
    """

    def __init__(
        self,
        logger: logging.Logger,
        process: psutil.Process | None = None,
        loglevel: int = logging.DEBUG,
        custom_monitors: Sequence[Callable[[logging.Logger], None]] = (),
    ) -> None:
        self._logger = logger
        self._process = process or psutil.Process()
        self._loglevel = loglevel
        self._custom_monitors = list(custom_monitors)
        #: Command -> process ids of the children that run it, at the previous call.
        self._seen: dict[str, list[int]] = {}

    def dump_state(self) -> None:
        """Log memory, threads, file descriptors and CPU time of the process and each of its children."""
        for process in self._family():
            with contextlib.suppress(psutil.Error):  # it has exited
                self._log("%s", describe(process))
        for monitor in self._custom_monitors:
            monitor(self._logger)

    def dump_threads(self) -> None:
        """Log the CPU time of each thread of the process."""
        with contextlib.suppress(psutil.Error):
            for thread in self._process.threads():
                self._log(
                    "thread %d: user %.2f s, system %.2f s",
                    thread.id,
                    thread.user_time,
                    thread.system_time,
                )

    def get_restarted_children(self) -> list[str]:
        """Return the commands of children that have been restarted since the previous call.

        A command counts as restarted if a process that ran it has gone and a new process runs it.
        """
        now: dict[str, list[int]] = {}
        for process in list(self._family())[1:]:
            with contextlib.suppress(psutil.Error):
                now.setdefault(" ".join(process.cmdline()), []).append(process.pid)
        restarted = []
        for command, pids in now.items():
            before = self._seen.get(command, [])
            if any(pid not in pids for pid in before) and any(pid not in before for pid in pids):
                restarted.append(command)
        for command, pids in now.items():
            self._seen[command] = pids
        return restarted

    def _family(self) -> Iterator[psutil.Process]:
        yield self._process
        with contextlib.suppress(psutil.Error):
            yield from self._process.children(recursive=True)

    def _log(self, text: str, *arguments: object) -> None:
        self._logger.log(self._loglevel, text, *arguments)


def describe(process: psutil.Process) -> str:
    """Return a line with the resource usage and the command of a process.

    Raises:
        psutil.Error: the process has exited, or belongs to another user
    """
    with process.oneshot():
        times = process.cpu_times()
        command = " ".join(process.cmdline())
        return (
            f"process {process.pid} ({process.status()}): {process.memory_info().rss / _MIB:.0f} MiB, "
            f"{process.num_threads()} threads, {process.num_fds()} descriptors, "
            f"{times.user + times.system:.2f} s: {command:.300}"
        )


class ProcessMonitoringThread:
    """Thread that dumps the state of a ProcessMonitoring periodically. Also a context manager.

    Args:
        monitoring: the ProcessMonitoring
        interval: interval between dumps, in seconds
    """

    def __init__(self, monitoring: ProcessMonitoring, interval: float = 10.0) -> None:
        self._monitoring = monitoring
        self._interval = interval
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, name="monitoring", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after a final dump."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
            self._monitoring.dump_state()

    def __enter__(self) -> ProcessMonitoringThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        self._monitoring.dump_state()
        while not self._ended.wait(self._interval):
            self._monitoring.dump_state()


class TestMonitoringContext(ProcessMonitoringThread):
    """Context manager that monitors this process.

    Args:
        logger: the logger to use
        interval: interval between dumps, in seconds
        loglevel: log level of the lines
        custom_monitors: as for `ProcessMonitoring`
    """

    __test__ = False  # pytest would collect a class of this name

    def __init__(
        self,
        logger: logging.Logger | None = None,
        interval: float = 10.0,
        loglevel: int = logging.DEBUG,
        custom_monitors: Sequence[Callable[[logging.Logger], None]] = (),
    ) -> None:
        logger = logger or logging.getLogger("pytriton.check.monitoring")
        monitoring = ProcessMonitoring(
            logger, psutil.Process(os.getpid()), loglevel, custom_monitors
        )
        super().__init__(monitoring, interval)
