"""The target that sends control messages to a real daemon: damaged, hostile, replayed, out of order, pipelined.

What legitimately does what it says is not sent: Shutdown, Drain and Upgrade, whatever names the real model or worker
and ends it (`_MAY_NAME`), a Register whose worker could start, and an Attach of a proxy that has
lost the only worker, which waits for the next.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
import zmq

from fuzz.parsers import control_bytes
from fuzz.target import Finding, Tally, Target
from fuzz.target_daemon import MODEL, TargetDaemon
from fuzz.values import Maker, packed
from pytriton._protocol import control, messages

Frames = list[bytes]

#: Never sent.
_FORBIDDEN = ("Shutdown", "Drain", "Upgrade")
#: Messages that are let through with the real names in them: they ask, or are refused, or repeat what is so.
_MAY_NAME = (
    "GetLogs", "Attach", "Detach", "LaneLost", "BatchOverdue", "WorkerHello", "WorkerReady",
    "WorkerFailed", "Register",
)  # fmt: skip
#: Messages that are not answered when all is well.
_SILENT = (
    "Cancel", "Detach", "WorkerHello", "WorkerReady", "WorkerFailed", "WorkerRecycleDue",
    "WorkerUnrecoverable", "WorkerEnded",
)  # fmt: skip
_ANSWER_S = 60.0
_UNDER_WAY = 32
_REQUEST_BYTES = 8
#: More instances than this the dispatcher has to refuse.
_MANY = 1024
_NOWHERE = "/nonexistent/python"


class ControlSocket(Target):
    """The dispatcher's control socket."""

    name = "control"
    share = 0.3
    block = 2_000

    def __init__(self, target_daemon: TargetDaemon) -> None:
        self._target_daemon = target_daemon
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.connect(f"ipc://{target_daemon.control_socket}")
        self._words = (
            MODEL,
            target_daemon.worker,
            target_daemon.registration,
            f"{MODEL}_0",
            "nobody",
        )
        self._serial = 0
        self._expected: dict[bytes, tuple[int, messages.AnyMessage]] = {}
        self._refused: set[int] = set()
        self._replays = self._capture()

    def run(self, seed: int, cases: Sequence[int], tally: Tally) -> None:
        """Send all cases at once, then wait for all answers that have to come."""
        self._refused.clear()
        for case in cases:
            self._run_case(Maker(seed, self.name, case, self._words), case)
            self._receive(0)
            self._until_answered(_UNDER_WAY)
        self._until_answered(0)
        for case in cases:
            tally.add(case not in self._refused)

    def _until_answered(self, most: int) -> None:
        """Wait until at most `most` requests are unanswered: the daemon eventually drops answers that are not read."""
        while len(self._expected) > most:
            if not self._receive(_ANSWER_S):
                missing = sorted({case for case, _ in self._expected.values()})
                asked = str(next(iter(self._expected.values()))[1])[:300]
                raise Finding(f"no answer within {_ANSWER_S:g} s to {asked}", missing)

    def check(self) -> None:
        """Check that daemon and model are unchanged."""
        self._target_daemon.check()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()

    # ── what is sent ─────────────────────────────────────────────────────────────────────────────

    def _run_case(self, maker: Maker, case: int) -> None:
        if maker.chance(500):
            self._raw_bytes(maker)
            self._refused.add(case)
        elif maker.chance(8):
            for message in _disorder(maker, self._target_daemon):
                self._send([b"", packed(message)], case)
        elif maker.chance(8):
            self._send([b"", *maker.random.choice(self._replays)], case)
        else:
            self._send(self._frames(maker), case)

    def _frames(self, maker: Maker) -> Frames:
        """Return frames without a valid request id; sometimes too many, too few, or too large."""
        frames = [b"", control_bytes(maker)]
        if maker.chance(6):
            frames = [maker.data(12), *(maker.data() for _ in range(maker.random.randrange(5)))]
        if maker.chance(4):
            frames += [maker.data() for _ in range(maker.random.randrange(4))]
        if maker.chance(2000):
            frames += [bytes(1 << maker.random.randrange(16, 25))]
        if maker.chance(2000):
            frames += [b"x"] * maker.random.randrange(5000)
        return frames

    def _send(self, frames: Frames, case: int) -> None:
        """Send frames; an empty first one is replaced by a request id that identifies the case in its answer."""
        if not frames[0]:
            self._serial += 1
            frames = [self._serial.to_bytes(_REQUEST_BYTES, "little"), *frames[1:]]
        elif len(frames[0]) == _REQUEST_BYTES:
            frames = [frames[0] + b"!", *frames[1:]]  # its answer could not be attributed
        try:
            _, message, _ = control.parse(frames)
        except messages.MalformedMessage:
            self._refused.add(case)
            self._socket.send_multipart(frames)
            return
        message = self._defused(message)
        self._socket.send_multipart([frames[0], messages.encode(message), *frames[2:]])
        if type(message).__name__ not in _SILENT:
            self._expected[frames[0]] = case, message

    def _defused(self, message: messages.AnyMessage) -> messages.AnyMessage:
        """Return the message without parts that would legitimately end or start something."""
        kind = type(message).__name__
        if kind in _FORBIDDEN:
            return messages.GetStatus()
        form: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
        if kind == "Register":
            if 3 < form["spec"].get("instances", 1) <= _MANY:
                form["spec"]["instances"] = 3  # each would be tried to be started
            form["spec"]["world"]["python"] = _NOWHERE
            form["spec"]["world"]["cwd"] = "/"
            form["spec"]["isolation"] = "process"  # this process runs no worker threads
        elif kind == "Attach" and form["lost"] == self._target_daemon.worker:
            form["lost"] = "w0"  # a proxy that lost the only worker rightly waits for the next
        elif kind == "GetLogs":
            form["lines"] = min(form["lines"], 20)
        elif kind not in _MAY_NAME:
            form = {key: "nobody" if value in self._words else value for key, value in form.items()}
        return messages.decode(packed(form))

    def _raw_bytes(self, maker: Maker) -> None:
        """Send bytes to the socket that are not ZeroMQ."""
        greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48)
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(self._target_daemon.control_socket))
            raw.sendall(maker.damage(greeting) if maker.chance(2) else greeting + maker.data(200))

    # ── what comes back ──────────────────────────────────────────────────────────────────────────

    def _receive(self, timeout_s: float) -> bool:
        """Receive all available answers, waiting for the first; return False if there is none."""
        came = False
        while self._socket.poll(0 if came else round(timeout_s * 1000)):
            came = True
            request_id, message, _ = control.parse(self._socket.recv_multipart())
            if isinstance(message, messages.Progress):
                continue
            case, _ = self._expected.pop(request_id, (None, None))
            if isinstance(message, messages.Failure):
                if case is not None:
                    self._refused.add(case)
                if message.kind == "internal":
                    raise Finding(f"a handler failed: {message.text}", [case or 0])
        return came

    def _capture(self) -> list[Frames]:
        """Return valid requests and their answers, as sent over the wire."""
        captured = []
        target_daemon = self._target_daemon
        with closing(control.ControlClient(f"ipc://{target_daemon.control_socket}")) as client:
            for question in (
                messages.GetStatus(),
                messages.ListModels(),
                messages.GetLogs(None, 5),
                messages.LaneLost(target_daemon.registration, "w0", 1),
            ):
                answer = client.ask(question, timeout_s=_ANSWER_S)
                captured += [[messages.encode(question)], [messages.encode(answer)]]
            client.send(messages.Detach(target_daemon.registration, "replayed"))
            client.flush()
        captured.append([messages.encode(messages.Detach(target_daemon.registration, "replayed"))])
        captured.append([messages.encode(messages.WorkerReady(target_daemon.worker))])
        return captured


def _disorder(maker: Maker, target_daemon: TargetDaemon) -> list[Any]:
    """Return valid messages in a wrong order, or from the wrong sender."""
    real, proxy, worker = target_daemon.registration, "made-up", target_daemon.worker
    hello = {"type": "WorkerHello", "worker": worker, "pid": 1, "python_version": "3"}
    orders: list[list[dict[str, Any]]] = [
        [{"type": "WorkerReady", "worker": worker}] * 2,
        [{"type": "WorkerFailed", "worker": worker, "text": "no", "traceback": ""}],
        [{**hello, "worker": "w999"}, {"type": "WorkerReady", "worker": "w999"}],
        [{**hello, "protocol": 0}],
        [
            {"type": "Detach", "registration": real, "instance": proxy},
            {"type": "Attach", "registration": real, "instance": proxy},
            {"type": "Detach", "registration": real, "instance": proxy},
            {"type": "Detach", "registration": real, "instance": proxy},
        ],
        [{"type": "Attach", "registration": "m#1", "instance": proxy, "lost": worker}],
        [{"type": "Attach", "registration": real, "instance": proxy, "protocol": 99}],
        [{"type": "ExplainLoss", "registration": real, "worker": "w12345"}] * 2,
        [{"type": "Unregister", "name": "nobody"}] * 2,
        [{"type": "Done"}, {"type": "Failure", "kind": "internal", "text": "?"}],
    ]
    order = maker.random.choice(orders)
    return (
        maker.random.sample(order, len(order))
        if maker.chance(3) and proxy not in str(order)
        else order
    )
