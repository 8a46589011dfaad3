"""A proxy's requests to the dispatcher: for a worker, and for instructions when a batch's worker is lost or
hangs.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.lanes.lane import Lane, LaneClosed, LaneError
from pytriton.proxy_backend.python_proxy.calls import ProxyCalls


class Attachment:
    """A proxy's attachment to a worker, and the lane, if there is one. Not thread-safe.

    Attributes:
        lane: the lane to the worker; None if there is none
        worker: the name of the worker
        avoid: workers that cannot serve the current batch, because they wait for it
        execution_timeout_s: the model's time limit for a batch, or None
        tracing: whether tritonserver traces requests with OpenTelemetry
        calls: the calls to other models that this proxy makes for the worker
    """

    def __init__(
        self,
        control: ControlClient,
        registration: str,
        instance: str,
        calls: ProxyCalls,
        version: int = 0,
    ) -> None:
        self.lane: Lane | None = None
        self.avoid: list[str] = []
        self.execution_timeout_s: float | None = None
        self.tracing = False
        self._control = control
        self._registration = registration
        self._instance = instance
        self._version = version
        self.calls = calls
        self._retire_calls = calls.retire
        self.worker = ""

    def attach(self) -> Lane:
        """Return the lane for a batch. If there is none, request workers until a connection to one succeeds.

        A worker may exit between the dispatcher's answer and the connection.

        Raises:
            RemoteFailure: no worker will become available; the text is for the client.
        """
        lane = self._attach(batch=True)
        if lane is None:
            raise LaneError("the dispatcher did not assign a worker to a batch")
        return lane

    def attach_early(self) -> Lane | None:
        """Attach before there is a batch. Return None if the model is suspended until there is one.

        Raises:
            RemoteFailure: no worker will become available.
        """
        return self._attach(batch=False)

    def _attach(self, *, batch: bool) -> Lane | None:
        lost = None
        while self.lane is None:
            attached = self._ask_for_worker(lost, batch)
            if not attached.lane_path:
                return None
            try:
                self.lane = Lane.connect(attached.lane_path, peer_trusted=False)
            except LaneClosed:
                lost = attached.worker
                continue
            self.calls.serve(attached.lane_path)
            self.worker = attached.worker
            self.execution_timeout_s = attached.execution_timeout_s
            self.tracing = attached.tracing
        return self.lane

    def detach_lane(self) -> Attachment:
        """Move the lane, whose worker is retiring, to a new attachment. Return the new attachment, which needs no
        `close`.
        """
        detached = copy.copy(self)
        detached._retire_calls = self.calls.detach()
        self.lane = None
        return detached

    def drop(self) -> None:
        """Close the lane, and stop making calls for its worker."""
        if self.lane is not None:
            self.lane.close()
            self.lane = None
            self._retire_calls()

    def judge_loss(self, **loss: Any) -> messages.Verdict:
        """Ask the dispatcher whether to retry the batch of a lost worker. `loss` contains the fields of `LaneLost`."""
        return self._ask(messages.LaneLost(self._registration, self.worker, **loss))

    def judge_overdue(
        self, *, was_read: bool, since: float | None = None, **loss: Any
    ) -> messages.Verdict:
        """Ask the dispatcher about a batch that has taken too long.

        Args:
            was_read: whether the worker has read the batch
            since: when this was first asked after the worker had read the batch (`time.monotonic`), or None
            loss: further fields of `BatchOverdue`
        """
        read_ms = round((time.monotonic() - since) * 1000) if was_read and since is not None else 0
        question = messages.BatchOverdue(
            self._registration, self.worker, was_read, read_ms=read_ms, **loss
        )
        return self._ask(question)

    def close(self) -> None:
        """Close the lane, wait for the calls in flight, and send `Detach` to the dispatcher."""
        self.drop()
        self.calls.end()
        self._control.send(messages.Detach(self._registration, self._instance))
        self._control.flush()
        self._control.close()

    def _ask(self, question: messages.LaneLost | messages.BatchOverdue) -> messages.Verdict:
        verdict = self._control.ask(question, timeout_s=None)
        if not isinstance(verdict, messages.Verdict):
            raise LaneError(
                f"unexpected answer from the dispatcher, not a Verdict: {type(verdict).__name__}"
            )
        return verdict

    def _ask_for_worker(self, lost: str | None, batch: bool) -> messages.Attached:
        avoid, self.avoid = self.avoid, []
        ask = messages.Attach(
            self._registration, self._instance, os.getpid(), lost, avoid, self._version, batch
        )
        # No timeout: the dispatcher answers as soon as there is a worker or it has given up, and this process exits with
        # the dispatcher.
        answer = self._control.ask(ask, timeout_s=None)
        if not isinstance(answer, messages.Attached):
            raise LaneError(
                f"unexpected answer from the dispatcher to Attach: {type(answer).__name__}"
            )
        return answer
