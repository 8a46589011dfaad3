"""Clients of a simulated daemon, without processes (simulated_daemon.py): their requests, answers and worker threads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytriton._protocol import control, messages

if TYPE_CHECKING:
    from fakes.simulated_daemon import SimulatedDaemon


def model_spec(name: str = "m", **more: Any) -> messages.ModelSpec:
    return messages.ModelSpec(name, 1, {}, messages.WorkerEnvironment("python"), **more)


@dataclass
class Request:
    """A client's request and the answers received so far."""

    progress: list[messages.Progress] = field(default_factory=list)
    answers: list[messages.AnyMessage] = field(default_factory=list)
    id: bytes = b""

    @property
    def answer(self) -> messages.AnyMessage | None:
        assert len(self.answers) < 2, f"two answers: {self.answers}"
        return self.answers[0] if self.answers else None

    @property
    def failure(self) -> str:
        """Return the text of the failure that answered the request."""
        assert isinstance(self.answer, messages.Failure), self.answer
        return self.answer.text


class Client:
    """A connection to the control socket; runs workers in its threads if the daemon asks for them."""

    def __init__(self, sim: SimulatedDaemon, pid: int, identity: bytes) -> None:
        self.pid = pid
        self.unasked: list[messages.AnyMessage] = []
        self._sim = sim
        self._identity = identity
        self._serial = itertools.count(1)
        self._requests: dict[bytes, Request] = {}

    @property
    def lives(self) -> bool:
        return self._sim.processes.lives(self.pid)

    def ask(self, message: messages.AnyMessage, payloads: Sequence[bytes] = ()) -> Request:
        """Send a message; the answer arrives while the loop runs."""
        number = next(self._serial).to_bytes(8, "little")
        self._requests[number] = request = Request(id=number)
        self._send(number, message, payloads)
        return request

    def register(
        self, name: str, payload: bytes = b"callable", *, replace: bool = False,
        ephemeral: bool = False, **spec: Any,
    ) -> Request:  # fmt: skip
        message = messages.Register(model_spec(name, **spec), replace, ephemeral)
        return self.ask(message, [payload])

    def give_up(self, request: Request) -> None:
        self.ask(messages.Cancel(request.id))

    def end_process(self) -> None:
        """Kill the client: its requests get no more answers."""
        self._sim.processes.end(self.pid)

    def _send(
        self, number: bytes, message: messages.AnyMessage, payloads: Sequence[bytes] = ()
    ) -> None:
        frames = control.frames(number, message, payloads)
        self._sim.loop.ask(lambda: self._sim.control.receive(self._identity, frames))

    def hear(self, number: bytes, message: messages.AnyMessage) -> None:
        if number == control.UNSOLICITED:
            self.unasked.append(message)
            self._sim.loop.call_soon(self._obey, message)
        elif isinstance(message, messages.Progress):
            assert not self._requests[number].answers, "progress after the answer"
            self._requests[number].progress.append(message)
        else:
            self._requests[number].answers.append(message)
            assert len(self._requests[number].answers) == 1, "two answers to one request"

    def _obey(self, message: messages.AnyMessage) -> None:
        if not self.lives:
            return
        if isinstance(message, messages.StartWorker):
            name = message.worker
            plan = self._sim.plan()
            if plan == "serves":
                self._say(messages.WorkerHello(name, self.pid, "3.11"))
                self._say(messages.WorkerReady(name))
            elif plan == "fails":
                self._say(messages.WorkerHello(name, self.pid, "3.11"))
                self._say(messages.WorkerFailed(name, "no file", ""))
            elif plan == "crashes":
                self._say(messages.WorkerEnded(name, "raised SystemExit"))
        elif isinstance(message, messages.EndWorker):
            self._say(messages.WorkerEnded(message.worker, "has ended"))

    def _say(self, message: messages.AnyMessage) -> None:
        number = next(self._serial).to_bytes(8, "little")
        self._requests[number] = Request(id=number)
        self._sim.control.receive(self._identity, control.frames(number, message))
