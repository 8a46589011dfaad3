"""A Python proxy with a dispatcher and workers that the test plays, and requests for it."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# Triton's stub comes first: it makes the proxy's modules importable.
from fakes.triton.fake_stub import FINAL, Request, Sender, TritonPythonModel

# isort: split
from support.real_daemon import eventually

from fakes.fake_attachment import FakeAttachment
from fakes.fake_dispatcher import FakeDispatcher
from fakes.lane_worker import Hangup, LaneWorker
from pytriton._protocol import messages
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchDone,
    FromProxy,
    ResponseDetails,
    ResponseRef,
    Room,
)
from pytriton._protocol.messages import Verdict
from pytriton._protocol.parameters import CONTROL_PARAMETER, REGISTRATION_PARAMETER
from pytriton.proxy_backend.python_proxy.streams import Streams
from pytriton.proxy_backend.python_proxy.translate import Translator

#: Parts of a stream: one that is not the last, the last one, and an end without a response.
ANSWER = ResponseRef([])
LAST = ResponseRef([], None, ResponseDetails(final=True))
NO_MORE = ResponseRef([], None, ResponseDetails(final=True, empty=True))


def echo(lane: Lane, message: FromProxy) -> None:
    """Answer each request with an error that contains its id; this needs no tensors."""
    assert isinstance(message, Batch)
    lane.send(BatchDone(message.id, [ResponseRef([], one.request_id) for one in message.requests]))


class ProxyHarness:
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
        answers[messages.LaneLost] = answers[messages.BatchOverdue] = self._judge
        answers[messages.Detach] = lambda _: []

    def worker(
        self,
        behave: Callable[[Lane, FromProxy], None] = echo,
        greet: Callable[[Lane], None] = lambda lane: None,
    ) -> LaneWorker:
        """Start another worker; the dispatcher names the newest one that the proxy does not avoid."""
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

    def _judge(self, message: messages.AnyMessage) -> list[messages.AnyMessage]:
        # On a slow machine, the worker may not have read the batch yet: as the dispatcher does, let the proxy wait.
        if isinstance(message, messages.BatchOverdue) and not message.was_read:
            return [messages.Verdict("wait", wait_s=0.02)]
        return [self.verdicts.pop(0)]

    def _attach(self, message: messages.AnyMessage) -> list[messages.AnyMessage]:
        assert isinstance(message, messages.Attach)
        names = [f"w{number}" for number in reversed(range(len(self.workers)))]
        name = next(
            one for one in [*sorted(self.gone), *names] if one not in (message.lost, *message.avoid)
        )
        self.gone.discard(name)
        path = str(Path(self.folder.name) / f"{name}.sock")
        return [messages.Attached(name, path, self.execution_timeout_s)]


def reported(responses: list[Any] | None) -> list[Any]:
    assert responses is not None
    return [one.reported() for one in responses]


def requests(*ids: str) -> list[Request]:
    return [Request(request_id=one) for one in ids]


def once(first: Callable[[Lane, FromProxy], None]) -> Callable[[Lane, FromProxy], None]:
    """Return a script that runs `behavior` for the first batch and answers later ones."""
    behaviours = [first]

    def behave(lane: Lane, message: FromProxy) -> None:
        (behaviours.pop() if behaviours else echo)(lane, message)

    return behave


def hang_up(lane: Lane, message: FromProxy) -> None:
    raise Hangup


class Proxy:
    """A proxy of a decoupled model, and its worker, played by the test."""

    def __init__(self, *verdicts: Verdict, until_returned: bool = False) -> None:
        attachment: Any = FakeAttachment(*verdicts)
        self.attachment = attachment
        self.streams = Streams("m", attachment, Translator("m", {}), until_returned=until_returned)
        self._threads: list[threading.Thread] = []
        self._lost: list[Lane] = []

    def begin(self, count: int = 1) -> list[Sender]:
        """Execute a batch in a thread; return the response senders of its requests."""
        requests = [Request() for _ in range(count)]
        senders = [one.sender for one in requests]
        self._threads.append(threading.Thread(target=self.streams.begin, args=(requests,)))
        self._threads[-1].start()
        return senders

    @property
    def flights(self) -> int:
        """Return the number of batches in flight on the current lane."""
        lane = self.streams._lane
        return 0 if lane is None else len(lane.flights)

    def executed(self) -> None:
        """Wait until all calls of `execute` have returned."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def worker(self, number: int = 0, *, batches: int = 4) -> Lane:
        """Wait for a lane and return the worker's end; the worker announces that it has room."""
        eventually(lambda: len(self.attachment.workers) > number, "the proxy has a lane")
        lane: Lane = self.attachment.workers[number]
        lane.send(Room(batches))
        return lane

    def lose(self, worker: Lane) -> None:
        """End the worker."""
        self._lost.append(worker)
        worker.close()

    def close(self) -> None:
        self.attachment.no_worker = "the test is over"
        for worker in self.attachment.workers:
            if worker not in self._lost:
                worker.close()
        self.streams.end()
        self.executed()


def batch_of(lane: Lane) -> Batch:
    message = lane.receive()
    assert isinstance(message, Batch)
    return message


def ended(sender: Sender) -> bool:
    """Return whether the client has received the end of its stream."""
    return bool(sender.sent) and sender.sent[-1][1] == FINAL
