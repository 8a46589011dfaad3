"""The model that tritonserver loads in place of a user's: it passes each batch to a worker and its answers back.

One instance of it runs per instance of a registered model, each in a process of its own (a python
backend stub). It asks the dispatcher once for a lane and keeps it; when the lane breaks or its
worker withdraws, it asks again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from select import poll
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.ipc import datatypes, linux, messages
from pytriton.ipc.arena import ArenaError
from pytriton.ipc.control import ControlClient
from pytriton.ipc.errors import RemoteFailure
from pytriton.ipc.lane import Batch, BatchDone, BatchFailed, Lane, LaneClosed, LaneError, Withdrawn
from pytriton.proxy_backend import translate
from pytriton.proxy_backend.regions import Regions

#: Parameters of the model configuration: where the dispatcher listens, and which registration this
#: is.
CONTROL_PARAMETER = "pytriton_control"
REGISTRATION_PARAMETER = "pytriton_registration"


class TritonPythonModel:
    """The interface that Triton's python backend calls: initialize, execute, finalize."""

    def initialize(self, args: dict[str, str]) -> None:
        """Attach to a worker; the model becomes ready when its proxies have all attached."""
        config = json.loads(args["model_config"])
        _guard_against_orphanhood()
        self._name = args["model_name"]
        self._instance = args["model_instance_name"]
        self._translator = translate.Translator(
            {entry["name"]: datatypes.of_config(entry["data_type"]) for entry in config["input"]}
        )
        self._registration = _parameter(config, REGISTRATION_PARAMETER)
        self._control = ControlClient(_parameter(config, CONTROL_PARAMETER))
        self._lane: Lane | None = None
        self._worker: str | None = None
        self._batch_id = 0
        try:
            self._attach()
        except RemoteFailure as failure:
            raise pb_utils.TritonModelException(failure.text) from failure

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer one batch; returns when the worker has answered it."""
        try:
            while True:
                lane = self._lane or self._attach()
                try:
                    answer = self._exchange(requests, lane)
                except LaneClosed:
                    return self._lost(requests, self._reason_of_loss())
                if isinstance(answer, BatchDone) and len(answer.responses) == len(requests):
                    return self._translator.responses(answer.responses, lane)
                if isinstance(answer, BatchFailed):
                    return [translate.failure(answer.text) for _ in requests]
                if not isinstance(answer, Withdrawn):
                    raise LaneError(f"{type(answer).__name__} does not answer this batch")
                self._drop_lane()
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

    def _exchange(self, requests: Sequence[Any], lane: Lane) -> Any:
        self._batch_id += 1
        lane.send(Batch(self._batch_id, self._translator.requests(requests, lane)))
        answer = lane.receive()
        if answer.id != self._batch_id:
            raise LaneError(f"the worker answered batch {answer.id}, not {self._batch_id}")
        return answer

    def _attach(self, lost: str | None = None) -> Lane:
        """Ask for a lane until one holds: a worker may end between the answer and the connection."""
        while self._lane is None:
            attached = self._ask_for_worker(lost)
            try:
                self._lane = Lane.connect(attached.lane_path, peer_trusted=False)
                self._worker = attached.worker
            except LaneClosed:
                lost = attached.worker
        return self._lane

    def _ask_for_worker(self, lost: str | None) -> messages.Attached:
        ask = messages.Attach(self._registration, self._instance, lost)
        # No time-out: the dispatcher answers as soon as a worker is there or it has given up on
        # one, and when the dispatcher ends, this process does.
        answer = self._control.ask(ask, timeout_s=None)
        if not isinstance(answer, messages.Attached):
            raise LaneError(f"the dispatcher answered {type(answer).__name__} to Attach")
        return answer

    def _reason_of_loss(self) -> str:
        """Drop the broken lane and learn from the dispatcher how its worker ended."""
        lost = self._worker
        self._drop_lane()
        ask = messages.ExplainLoss(self._registration, lost or "?")
        reason = self._control.ask(ask, timeout_s=None)
        if isinstance(reason, messages.LossExplained):
            return reason.text
        raise LaneError(f"the dispatcher answered {type(reason).__name__} to ExplainLoss")

    def _drop_lane(self) -> None:
        if self._lane is not None:
            self._lane.close()
            self._lane = None
            self._translator.forget_lane()

    def _lost(self, requests: Sequence[Any], text: str) -> list[Any]:
        code = getattr(pb_utils.TritonError, "UNAVAILABLE", None)
        return [translate.failure(text, code) for _ in requests]


def _parameter(config: dict[str, Any], name: str) -> str:
    value: str = config["parameters"][name]["string_value"]
    return value


def _guard_against_orphanhood() -> None:
    """Make this process's shared memory private, and end with tritonserver even when that is killed.

    The stub notices such an end only between batches and leaves its region in /dev/shm.
    PR_SET_PDEATHSIG will not do: it fires when the parent's *thread* ends, and tritonserver starts
    stubs from threads that come and go.
    """
    paths = Regions().paths()
    for path in paths:
        os.chmod(path, 0o600)
    server = linux.pidfd_open(os.getppid())
    threading.Thread(target=_end_with, args=(server, paths), daemon=True).start()


def _end_with(server: int, paths: set[str]) -> None:
    waiter = poll()
    waiter.register(server)
    waiter.poll()
    for path in paths:
        Path(path).unlink(missing_ok=True)  # tritonserver has removed it if it ended in order
    os._exit(0)
