"""The model that tritonserver loads in place of a user's: it passes each batch to a worker and its answers back.

One instance of it runs per instance of a registered model, each in a process of its own (a python
backend stub). It asks the dispatcher once for a lane and keeps it; when the lane ends, it asks
again. A batch that the worker had not read by then goes to the next worker as if nothing had been;
about one that it had, the dispatcher decides (`Verdict`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.ipc import datatypes, messages
from pytriton.ipc.arena import ArenaError
from pytriton.ipc.control import ControlClient
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.lane import (
    Batch,
    BatchDone,
    BatchFailed,
    Lane,
    LaneClosed,
    LaneError,
    LaneSilent,
)
from pytriton.proxy_backend import translate
from pytriton.proxy_backend.regions import Regions

#: Parameters of the model configuration: where the dispatcher listens, and which registration this
#: is.
CONTROL_PARAMETER = "pytriton_control"
REGISTRATION_PARAMETER = "pytriton_registration"


class Overdue(Exception):
    """A batch has run too long. `text` is its answer; None: it was not begun, another worker takes it."""

    def __init__(self, text: str | None) -> None:
        super().__init__(text)
        self.text = text


class TritonPythonModel:
    """The interface that Triton's python backend calls: initialize, execute, finalize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Attach to a worker; the model becomes ready when its proxies have all attached."""
        config = json.loads(args["model_config"])
        _make_regions_private()
        self._name = args["model_name"]
        # Triton may have two of one name for a moment: when it changes their number, or one replaces another.
        self._instance = f"{args['model_instance_name']}:{os.getpid()}"
        self._translator = translate.Translator(
            {entry["name"]: datatypes.of_config(entry["data_type"]) for entry in config["input"]}
        )
        self._registration = _parameter(config, REGISTRATION_PARAMETER)
        self._control = ControlClient(_parameter(config, CONTROL_PARAMETER))
        self._lane: Lane | None = None
        self._worker = ""
        self._patience_s: float | None = None
        self._waited_on = False
        self._batch_id = 0
        try:
            self._attach()
        except RemoteFailure as failure:
            raise pb_utils.TritonModelException(failure.text) from failure

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one batch; returns when a worker has answered it, or none will."""
        losses = 0
        try:
            while True:
                lane = self._lane or self._attach()
                try:
                    return self._responses(requests, lane, self._exchange(requests, lane))
                except LaneClosed as end:
                    losses += not end.unread
                    text = None if end.unread else self._verdict_on_loss(losses)
                    self._drop_lane()
                except Overdue as overdue:
                    text = overdue.text
                    self._drop_lane()
                if text is not None:
                    return self._lost(requests, text)
        except RemoteFailure as failure:
            return self._lost(requests, failure.text)
        except (ArenaError, LaneError, messages.MalformedMessage) as error:
            self._drop_lane()
            return self._lost(requests, f"model {self._name}: {error}")

    def finalize(self) -> None:
        """Let the worker go."""
        self._drop_lane()
        self._control.send(messages.Detach(self._registration, self._instance))
        self._control.flush()
        self._control.close()

    def _exchange(self, requests: Sequence[Any], lane: Lane) -> BatchDone | BatchFailed:
        """Hand the batch to the worker and return what it answers.

        Raises:
            LaneClosed: the lane ended first.
            Overdue: the batch has taken too long.
        """
        self._batch_id += 1
        lane.send(Batch(self._batch_id, self._translator.requests(requests, lane)))
        while True:
            try:
                answer = lane.receive()
                break
            except LaneSilent:
                self._wait_on(lane)
        if self._waited_on:
            self._waited_on = False
            lane.set_patience(self._patience_s)
        if answer.id != self._batch_id or isinstance(answer, Batch):
            raise LaneError(
                f"the worker answered batch {self._batch_id} with {type(answer).__name__} {answer.id}"
            )
        return answer

    def _responses(
        self, requests: Sequence[Any], lane: Lane, answer: BatchDone | BatchFailed
    ) -> list[Any]:
        if isinstance(answer, BatchFailed):
            return [translate.failure(answer.text) for _ in requests]
        if len(answer.responses) != len(requests):
            raise LaneError(
                f"the worker gave {len(answer.responses)} responses to {len(requests)} requests"
            )
        return self._translator.responses(answer.responses, lane)

    # ── trouble ──────────────────────────────────────────────────────────────────────────────────

    def _wait_on(self, lane: Lane) -> None:
        """The batch is overdue: wait on if the dispatcher says so.

        Raises:
            Overdue: it says that the worker hangs.
        """
        taken = lane.all_read()
        verdict = self._ask(messages.BatchOverdue(self._registration, self._worker, taken))
        if verdict.action == "wait":
            lane.set_patience(verdict.wait_s)
            self._waited_on = True
            return
        raise Overdue(verdict.text if verdict.action == "fail" else None)

    def _verdict_on_loss(self, losses: int) -> str | None:
        """Return what to answer to the batch of a lost worker; None to try another one."""
        verdict = self._ask(messages.LaneLost(self._registration, self._worker, losses))
        return verdict.text if verdict.action == "fail" else None

    def _ask(self, question: messages.LaneLost | messages.BatchOverdue) -> messages.Verdict:
        verdict = self._control.ask(question, timeout_s=None)
        if not isinstance(verdict, messages.Verdict):
            raise LaneError(f"the dispatcher answered {type(verdict).__name__}, not a Verdict")
        return verdict

    def _attach(self) -> Lane:
        """Ask for a lane until one holds: a worker may end between the answer and the connection."""
        lost = None
        while self._lane is None:
            attached = self._ask_for_worker(lost)
            try:
                self._lane = Lane.connect(attached.lane_path, peer_trusted=False)
            except LaneClosed:
                lost = attached.worker
                continue
            self._worker = attached.worker
            self._patience_s = attached.execution_timeout_s
            self._lane.set_patience(self._patience_s)
        return self._lane

    def _ask_for_worker(self, lost: str | None) -> messages.Attached:
        ask = messages.Attach(self._registration, self._instance, os.getpid(), lost)
        # No time-out: the dispatcher answers as soon as a worker is there or it has given up on
        # one, and when the dispatcher ends, this process does.
        answer = self._control.ask(ask, timeout_s=None)
        if not isinstance(answer, messages.Attached):
            raise LaneError(f"the dispatcher answered {type(answer).__name__} to Attach")
        return answer

    def _drop_lane(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None
            self._waited_on = False
            self._translator.forget_lane()

    def _lost(self, requests: Sequence[Any], text: str) -> list[Any]:
        code = getattr(pb_utils.TritonError, "UNAVAILABLE", None)
        return [translate.failure(text, code) for _ in requests]


def _parameter(config: dict[str, Any], name: str) -> str:
    value: str = config["parameters"][name]["string_value"]
    return value


def _make_regions_private() -> None:
    """Make this process's shared memory its user's alone, where the daemon could not have it made so."""
    for path in Regions().paths():
        os.chmod(path, 0o600)
