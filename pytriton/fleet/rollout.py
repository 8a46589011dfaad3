"""Rolls a new version out to a few nodes first, then to the others. Rolls it back if it performs worse.

    first nodes ──▶ watched against the others ──▶ twice as many, and so on ──▶ all keep it
                        └─ worse, or a node fails, or this process dies: all return to the old version

The new version is provisional until all nodes have it: a node rolls it back if its lease is not renewed for
`LEASE_S`. So if the registering process or the network fails, no node keeps an incomplete change for longer than
that.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Optional

import msgspec

from pytriton._control.connection import Report
from pytriton._protocol import messages
from pytriton.daemon_client import DaemonClient
from pytriton.exceptions import CanaryError, FleetError, ModelNotFoundError, PyTritonError
from pytriton.fleet.broadcast import MAX_AT_ONCE, Change, NodeAnswers, ask_each
from pytriton.fleet.canary import Canary, CanaryCounters, CanaryWatch, counters_of, plan_waves

_POLL_INTERVAL_S = 0.5
#: Interval between progress reports of a watch.
_REPORT_INTERVAL_S = 2.0

#: Duration of the lease. A node rolls back if the lease is not renewed within this time.
LEASE_S = 30.0
_RENEW_S = 5.0


class Rollout:
    """Registers a model on all nodes. The registration is provisional until all nodes have it.

    Args:
        clients: the nodes
        message: the registration
        payloads: the pickled callables
        canary: settings of a canary rollout; None: all nodes at once
        report: function that receives the progress
        pause: function like time.sleep
        clock: function like time.monotonic
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
        self._waves = [list(clients)] if canary is None else plan_waves(list(clients), canary.share)
        self._lease = FleetLease(clients, self._name, 0.0 if canary is None else canary.share)
        self._message = message
        self._payloads = payloads
        self._report = report
        self._pause = pause
        self._clock = clock
        self._found: dict[str, messages.ModelInfo] = {}

    def run(self) -> dict[str, messages.ModelInfo]:
        """Serve the model on all nodes and return each node's answer.

        Raises:
            FleetError: a node failed, or does not confirm the registration.
            CanaryError: the new version performed worse than the old one, which all nodes serve again.
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
                undone = self._roll_back()
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
            self._lease.record_registered(node)
            return info

        change = Change(
            "registered",
            self._name,
            make,
            self._lease.roll_back,
            lambda *_: True,
            f"if it is served there nevertheless, that node rolls it back within {LEASE_S:g} s",
        )
        self._found.update(change.on_all({one: self._clients[one] for one in wave}, self._report))

    def _roll_back(self) -> str:
        """Roll the new version back on the nodes that have it. Return a line of text for each node."""
        there = {node: self._clients[node] for node in self._found}
        answers = ask_each(there, self._lease.roll_back)
        lines = [f"{node}: {text}" for node, text in answers.done.items() if text]
        lines += [
            f"{node}: it will roll back within {LEASE_S:g} s; error: {error}"
            for node, error in answers.failed.items()
        ]
        return "\n".join(lines)

    # ── the watch ────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        canary = self._canary
        assert canary is not None
        watch = CanaryWatch(canary, self._clock(), self._read_counters().done)
        reported_at = -math.inf
        while True:
            self._pause(_POLL_INTERVAL_S)
            seen, now = self._read_counters(), self._clock()
            fault, summary, over = watch.judge(now, seen.done, self._found)
            self._check(seen.failed, fault)
            if over or now - reported_at >= _REPORT_INTERVAL_S:
                reported_at = now
                self._report_progress("canary", summary)
            if over:
                return

    def _check(self, failed: Mapping[str, Exception], why: str) -> None:
        """Raise CanaryError if there is a fault, or if a node has lost the new version or cannot be watched."""
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

    def _read_counters(self) -> NodeAnswers[CanaryCounters]:
        return ask_each(self._clients, lambda _, client: counters_of(client.metrics(), self._name))

    def _report_progress(self, stage: str, text: str) -> None:
        if self._report is not None:
            done, total = len(self._found), len(self._clients)
            self._report(messages.Progress(stage, f"{stage}: {text}", done, total))


class FleetLease:
    """The lease of a provisional registration on all nodes.

    It is renewed inside the `with` block, and ends when the registration is confirmed or rolled back.

    Args:
        clients: the nodes
        model: name of the model
        share: share of the requests that balancers send to the nodes with the new version, all together; 0: no limit

    Attributes:
        id: ID of the lease on the nodes
        lost: errors of nodes that had the new version and have lost it
    """

    def __init__(self, clients: Mapping[str, DaemonClient], model: str, share: float = 0.0) -> None:
        self.id = secrets.token_hex(16)
        self.lost: dict[str, Exception] = {}
        self._clients = clients
        self._model = model
        self._share = share
        self._registered_nodes: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="fleet-lease")

    def __enter__(self) -> FleetLease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def as_provisional(self, message: messages.Register) -> messages.Register:
        """Return a copy of a registration with this lease."""
        lease = messages.Lease(self.id, LEASE_S, self._share)
        spec = msgspec.structs.replace(message.spec, lease=lease)
        return msgspec.structs.replace(message, spec=spec)

    def record_registered(self, node: str) -> None:
        """Record that a node has the new version. From now on, losing it is an error."""
        self._registered_nodes.add(node)

    def lift_share(self) -> None:
        """Remove the limit on the share of requests that balancers send to nodes with the new version."""
        self._share = 0.0
        ask_each({one: self._clients[one] for one in self._registered_nodes}, self._renew_on)

    def roll_back(self, node: str, client: DaemonClient) -> str:
        """Roll the registration back on one node. Return the outcome; "" if the node did not have it."""
        self._registered_nodes.discard(node)
        try:
            client.end_lease(self._model, self.id, keep=False)
        except ModelNotFoundError:
            return ""
        return "it was withdrawn"

    def check(self) -> None:
        """Check that all nodes still have the registration: a node may have failed in the meantime.

        Raises:
            FleetError: a node has lost the registration or does not answer
        """
        answers = ask_each(
            self._clients, lambda _, client: client.renew_lease(self._model, self.id, self._share)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} was not registered: all nodes had it, but some have lost it in the meantime. "
            f"A node that does not answer rolls it back within {LEASE_S:g} s of its return.",
        )

    def keep(self) -> None:
        """Confirm the registration on all nodes.

        Raises:
            FleetError: a node did not confirm the registration; the message lists these nodes
        """
        answers = ask_each(
            self._clients, lambda _, client: client.end_lease(self._model, self.id, keep=True)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} is confirmed on {', '.join(answers.done) or 'no node'}. A node that was not "
            f"reached rolls it back within {LEASE_S:g} s. Use `sync` to copy it there.",
        )

    def _require_all(self, failed: dict[str, Exception], text: str) -> None:
        if failed:
            texts = "\n".join(f"{node}: {error}" for node, error in failed.items())
            raise FleetError(f"{text}\n{texts}", model_name=self._model, failures=failed)

    def _renew(self) -> None:
        # A node that is slow to answer must not delay the others.
        running: dict[str, Optional[Future[None]]] = dict.fromkeys(self._clients)
        pool = ThreadPoolExecutor(max(1, min(len(self._clients), MAX_AT_ONCE)))
        while not self._ended.wait(_RENEW_S):
            for node in list(self._registered_nodes):
                former = running[node]
                if former is None or former.done():
                    running[node] = pool.submit(self._renew_on, node, self._clients[node])
        pool.shutdown(wait=False)

    def _renew_on(self, node: str, client: DaemonClient) -> None:
        try:
            client.renew_lease(self._model, self.id, self._share)
        except ModelNotFoundError as error:
            if node in self._registered_nodes:
                self.lost[node] = error
        except PyTritonError:  # the node is down or slow; the confirmation will show the outcome
            return
