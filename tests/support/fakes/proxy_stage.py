"""A Python proxy on its stage: a dispatcher and workers that the test plays, and requests for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytriton.ipc import messages
from pytriton.ipc.lanes.lane import Lane
from pytriton.ipc.lanes.lane_messages import Batch, BatchDone, FromProxy, ResponseRef
from pytriton.ipc.parameters import CONTROL_PARAMETER, REGISTRATION_PARAMETER
from support.fakes.fake_dispatcher import FakeDispatcher
from support.fakes.fake_stub import Request, TritonPythonModel
from support.fakes.lane_worker import Hangup, LaneWorker


def echo(lane: Lane, message: FromProxy) -> None:
    """Answer each request with an error that carries its id: it needs no tensors."""
    assert isinstance(message, Batch)
    lane.send(BatchDone(message.id, [ResponseRef([], one.request_id) for one in message.requests]))


class Stage:
    """A dispatcher, its workers, and a proxy."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp")
        self.dispatcher = FakeDispatcher()
        self.workers: list[LaneWorker] = []
        self.execution_timeout_s: float | None = None
        self.verdicts: list[messages.Verdict] = []
        self.gone: set[str] = set()  #: workers that the dispatcher names, and nobody listens for
        self.model: TritonPythonModel | None = None
        answers = self.dispatcher.answers
        answers[messages.Attach] = self._attach
        answers[messages.LaneLost] = answers[messages.BatchOverdue] = lambda _: [
            self.verdicts.pop(0)
        ]
        answers[messages.Detach] = lambda _: []

    def worker(
        self,
        behave: Callable[[Lane, FromProxy], None] = echo,
        greet: Callable[[Lane], None] = lambda lane: None,
    ) -> LaneWorker:
        """Have another worker listen: the dispatcher names the newest that the proxy does not avoid."""
        path = Path(self.folder.name) / f"w{len(self.workers)}.sock"
        self.workers.append(LaneWorker(path, behave, greet))
        return self.workers[-1]

    def load(
        self, parameters: Mapping[str, str] | None = None, *, decoupled: bool = False
    ) -> TritonPythonModel:
        said = {
            CONTROL_PARAMETER: self.dispatcher.rundir.control_endpoint,
            REGISTRATION_PARAMETER: "r1",
            **(parameters or {}),
        }
        config = {
            "input": [],
            "model_transaction_policy": {"decoupled": decoupled},
            "parameters": {name: {"string_value": value} for name, value in said.items()},
        }
        self.model = TritonPythonModel()
        self.model.initialize(
            {
                "model_config": json.dumps(config),
                "model_name": "m",
                "model_version": "3",
                "model_instance_name": "m_0",
            }
        )
        return self.model

    def heard(self, kind: type) -> list[Any]:
        return [one for one in self.dispatcher.heard if type(one) is kind]

    def close(self) -> None:
        try:
            if self.model is not None:
                self.model.finalize()
            for worker in self.workers:
                worker.close()
            self.dispatcher.close()
        finally:
            self.folder.cleanup()

    def _attach(self, message: messages.AnyMessage) -> list[messages.AnyMessage]:
        assert isinstance(message, messages.Attach)
        names = [f"w{number}" for number in reversed(range(len(self.workers)))]
        name = next(
            one for one in [*sorted(self.gone), *names] if one not in (message.lost, *message.avoid)
        )
        self.gone.discard(name)
        path = str(Path(self.folder.name) / f"{name}.sock")
        return [messages.Attached(name, path, self.execution_timeout_s)]


def told(responses: list[Any] | None) -> list[Any]:
    assert responses is not None
    return [one.told() for one in responses]


def requests(*ids: str) -> list[Request]:
    return [Request(request_id=one) for one in ids]


def once(first: Callable[[Lane, FromProxy], None]) -> Callable[[Lane, FromProxy], None]:
    """Behave once as told, afterwards well."""
    behaviours = [first]

    def behave(lane: Lane, message: FromProxy) -> None:
        (behaviours.pop() if behaviours else echo)(lane, message)

    return behave


def hang_up(lane: Lane, message: FromProxy) -> None:
    raise Hangup
