"""Step-by-step rollout of a new version: a few nodes, a watch, then the others; rolled back if it performs worse.

    first nodes ──▶ watched against the others ──▶ twice as many, and so on ──▶ all keep it
                        └─ worse, or a node fails, or this process dies: all return to the old version

It is provisional on each node until all have it (see `lease`), so a crash leaves nothing to clean up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Optional

import msgspec

from pytriton._control.daemon_view import Report
from pytriton._protocol import messages
from pytriton.daemon import DaemonClient
from pytriton.exceptions import CanaryError, FleetError
from pytriton.fleet.broadcast import Change, NodeAnswers, ask_each
from pytriton.fleet.canary import Canary, waves_of
from pytriton.fleet.canary_analysis import CanaryWatch, Seen, seen_of
from pytriton.fleet.lease import LEASE_S, FleetLease

_POLL_INTERVAL_S = 0.5
#: Interval between progress reports of a watch.
_REPORT_INTERVAL_S = 2.0


class Rollout:
    """One registration on all nodes, provisional until all have it.

    Args:
        clients: the nodes
        message: the registration
        payloads: its callables
        canary: None: all nodes at once
        report: receives the progress
        pause: sleeps for a number of seconds
        clock: the time in seconds
    """

    def __init__(
        self,
        clients: Mapping[str, DaemonClient],
        message: messages.Register,
        payloads: Sequence[bytes],
        canary: Optional[Canary],
        report: Optional[Report],
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._name = message.spec.name
        self._canary = canary
        self._waves = [list(clients)] if canary is None else waves_of(list(clients), canary.share)
        self._lease = FleetLease(clients, self._name, 0.0 if canary is None else canary.share)
        self._message = message
        self._payloads = payloads
        self._report = report
        self._pause = pause
        self._clock = clock
        self._found: dict[str, messages.ModelInfo] = {}

    def run(self) -> dict[str, messages.ModelInfo]:
        """Serve the model on all nodes; return each node's answer.

        Raises:
            FleetError: a node failed, or does not confirm the registration.
            CanaryError: it performed worse than the old version, which all nodes serve again.
        """
        with self._lease:
            try:
                for number, wave in enumerate(self._waves):
                    if len(self._waves) > 1:
                        self._report_progress(
                            "rollout", f"on {len(self._found)} of {len(self._clients)} nodes"
                        )
                    self._register_on(wave)
                    if number == 0 and len(self._waves) > 1:
                        self._watch()
                        self._lease.lift_share()
                    self._check({}, "")
                self._lease.check()
            except BaseException as error:
                undone = self._take_back()
                if isinstance(error, FleetError) and undone:
                    raise type(error)(
                        f"{error.message}\n{undone}", model_name=self._name, failures=error.failures
                    ) from None
                raise
            self._lease.keep()
        return {
            node: msgspec.structs.replace(info, lease=None) for node, info in self._found.items()
        }

    def _register_on(self, wave: Sequence[str]) -> None:
        message = self._lease.as_provisional(self._message)

        def make(node: str, client: DaemonClient, report: Report) -> messages.ModelInfo:
            info = client.register_prepared(message, self._payloads, report).info()
            self._lease.made(node)
            return info

        change = Change(
            "registered",
            self._name,
            make,
            self._lease.roll_back,
            lambda *_: True,
            f"should it be served there after all, that node takes it back within {LEASE_S:g} s",
        )
        self._found.update(change.on_all({one: self._clients[one] for one in wave}, self._report))

    def _take_back(self) -> str:
        """Roll it back on the nodes that have it; return a line for each."""
        there = {node: self._clients[node] for node in self._found}
        answers = ask_each(there, self._lease.roll_back)
        lines = [f"{node}: {text}" for node, text in answers.done.items() if text]
        lines += [
            f"{node}: it takes it back within {LEASE_S:g} s, for now {error}"
            for node, error in answers.failed.items()
        ]
        return "\n".join(lines)

    # ── the watch ────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        canary = self._canary
        assert canary is not None
        watch = CanaryWatch(canary, self._clock(), self._look().done)
        reported_at = -math.inf
        while True:
            self._pause(_POLL_INTERVAL_S)
            seen, now = self._look(), self._clock()
            fault, summary, over = watch.judge(now, seen.done, self._found)
            self._check(seen.failed, fault)
            if over or now - reported_at >= _REPORT_INTERVAL_S:
                reported_at = now
                self._report_progress("canary", summary)
            if over:
                return

    def _check(self, failed: Mapping[str, Exception], why: str) -> None:
        """Raise CanaryError on a fault, or if a node lost the new version or cannot be watched."""
        silent = {node: error for node, error in failed.items() if node in self._found}
        lost = {**silent, **self._lease.lost}
        if not why and lost:
            why = f"{', '.join(lost)} cannot be watched: {next(iter(lost.values()))}"
        if why:
            raise CanaryError(
                f"Model {self._name!r}: the new version was rolled back: {why}.",
                model_name=self._name,
                failures=lost,
            )

    def _look(self) -> NodeAnswers[Seen]:
        return ask_each(self._clients, lambda _, client: seen_of(client.metrics(), self._name))

    def _report_progress(self, stage: str, text: str) -> None:
        if self._report is not None:
            done, total = len(self._found), len(self._clients)
            self._report(messages.Progress(stage, f"{stage}: {text}", done, total))
