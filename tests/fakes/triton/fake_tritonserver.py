"""A harness for the fake tritonserver of tests/native/backend: a dispatcher with a real ROUTER, and workers with real lanes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from support.real_daemon import eventually

from pytriton._protocol import messages
from pytriton._protocol.control import frames, parse
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane, LaneClosed
from pytriton._protocol.lanes.lane_messages import (
    Batch,
    BatchBegun,
    BatchDone,
    BatchPart,
    Credit,
    ResponseDetails,
    ResponseRef,
    Room,
    TensorRef,
)

#: The lines of the responses that `streaming` sends to the first request of a batch.
STREAMED = [f"response to 0, flags {flags}: y 11 [1,2] 0000803f0000803f" for flags in (0, 1)]
#: The dispatcher's answer about a batch whose worker was lost.
LOST = messages.Verdict("fail", "the worker was lost: é")

#: What a test's worker does with a lane.
Work = Callable[[Lane], None]
#: Decides the dispatcher's answer about a lost or overdue batch.
Judge = Callable[[Any], messages.Verdict]


class Dispatcher:
    """Answers a proxy's requests: offers one worker for each of `paths`, and lets a lost batch fail.

    `judge` overrides that answer. With `patience_s`, the proxy also asks about batches that take longer.
    """

    def __init__(
        self,
        folder: Path,
        paths: list[str],
        judge: Judge | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._judge = judge or (lambda _: LOST)
        self._patience_s = patience_s
        self.endpoint = f"ipc://{folder}/control"
        self.heard: list[Any] = []
        self._paths = paths
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(self.endpoint)
        self._end = self._context.socket(zmq.PAIR)
        self._end.bind("inproc://end")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(self._context.socket(zmq.PAIR)) as end:
            end.connect("inproc://end")
            poller = zmq.Poller()
            poller.register(end, zmq.POLLIN)
            poller.register(self._socket, zmq.POLLIN)
            while end not in dict(poller.poll()):
                peer, *parts = self._socket.recv_multipart()
                number, message, _ = parse(parts)
                self.heard.append(message)
                answer = self._answer(message)
                if answer is not None:
                    self._socket.send_multipart([peer, *frames(number, answer)])

    def _answer(self, message: Any) -> messages.AnyMessage | None:
        if isinstance(message, messages.Attach):
            if not self._paths:
                return messages.Failure("unavailable", "no worker is left")
            return messages.Attached("w", self._paths.pop(0), self._patience_s, tracing=True)
        if isinstance(message, (messages.LaneLost, messages.BatchOverdue)):
            return self._judge(message)
        return None

    def is_left(self) -> bool:
        """Return whether the proxy has announced its end."""
        return any(isinstance(message, messages.Detach) for message in list(self.heard))

    def close(self) -> None:
        self._end.send(b"")
        self._thread.join()
        for one in (self._end, self._socket):
            one.close()
        self._context.term()


class Workers:
    """Accepts lanes, and runs each piece of work with the next one."""

    def __init__(self, folder: Path, works: list[Work]) -> None:
        self.paths = []
        self.errors: list[BaseException] = []
        self._threads = []
        self._listeners = []
        for number, work in enumerate(works):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(folder / f"{number}.lane"))
            listener.listen()
            self.paths.append(str(folder / f"{number}.lane"))
            thread = threading.Thread(target=self._run, args=[listener, work])
            thread.start()
            self._threads.append(thread)
            self._listeners.append(listener)

    def _run(self, listener: socket.socket, work: Work) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # this listener was not used
            return
        lane = Lane(connection, peer_trusted=True)
        try:
            work(lane)
        except BaseException as error:  # raised in the test by join()
            self.errors.append(error)
        finally:
            lane.close()

    def join(self) -> None:
        for listener, thread in zip(self._listeners, self._threads):
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            listener.close()
        assert not self.errors, self.errors


def run(
    program: Path,
    folder: Path,
    works: list[Work],
    *,
    batches: int = 1,
    requests: int = 1,
    decoupled: bool = False,
    descriptors: int | None = None,
    environment: dict[str, str] | None = None,
    ends: int = 0,
    judge: Judge | None = None,
    patience_s: float | None = None,
    attaches: bool = True,
    named: bool = False,
    **parameters: str,
) -> tuple[list[str], list[Any]]:
    """Serve batches; return the lines printed by the program, and the requests to the dispatcher.

    Args:
        environment: variables for the program
        ends: the expected exit code
        judge, patience_s: see Dispatcher
        attaches: whether the proxy asks for a worker at all
        named: whether errors contain the id of their request, which is "i" unless FAKE_ID is set
    """
    workers = Workers(folder, works)
    with closing(Dispatcher(folder, list(workers.paths), judge, patience_s)) as dispatcher:
        values = {
            "pytriton_control": dispatcher.endpoint,
            "pytriton_registration": "r-1",
            **parameters,
        }
        config = {
            "name": "model",
            "max_batch_size": 8,
            "model_transaction_policy": {"decoupled": decoupled},
            "noise": {"list": [1, -2.5e3, {"a": '}\\"'}, []], "parameters": None},
            "parameters": {name: {"string_value": value} for name, value in values.items()},
        }
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        limited = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"] if descriptors else []
        leaks = 0 if descriptors else 1  # the leak search itself needs descriptors
        done = subprocess.run(
            [*limited, program, folder / "config.json", str(batches), str(requests)],
            capture_output=True,
            text=True,
            timeout=100,
            env={
                **os.environ,
                "ASAN_OPTIONS": f"detect_leaks={leaks}",
                "PYTRITON_CALLS_KEY": "0" * 32,
                **(environment or {}),
            },
        )
        workers.join()
        if done.returncode == 0 and descriptors is None and attaches:
            # Its last message may still be in transit.
            eventually(dispatcher.is_left, lambda: f"the proxy detaches; heard: {dispatcher.heard}")
    assert done.returncode == ends or "refused: " in done.stdout, f"{done.stdout}\n{done.stderr}"
    said = done.stdout if named else done.stdout.replace(" [request id: i]", "")
    return said.splitlines(), dispatcher.heard


def serving(answer: Callable[[Lane, Batch], Any]) -> Work:
    """Return work that answers every batch until the proxy disconnects."""

    def work(lane: Lane) -> None:
        while True:
            try:
                batch = lane.receive()
            except LaneClosed:
                return
            assert isinstance(batch, Batch)
            lane.arena.reset()
            reply = answer(lane, batch)
            if reply is None:
                return
            try:
                lane.send(reply)
            except LaneClosed:  # it closed the lane after an invalid message
                return

    return work


def output(lane: Lane, name: str, array: Any, datatype: str = "FP32") -> TensorRef:
    return tensors.write(lane, name, datatype, array, array.dtype)


def echo(lane: Lane, batch: Batch) -> BatchDone:
    """Answer each request with `y` = 2 * `x`, its string as `z`, and an output that nobody requested."""
    responses = []
    for request in batch.requests:
        x, s, nothing = request.inputs
        assert (nothing.shape, nothing.nbytes, nothing.datatype) == ([1, 0], 0, "INT64")
        given = tensors.read(lane, x, np.dtype(np.float32))
        text = bytes(tensors.read_raw(lane, s))
        responses.append(
            ResponseRef(
                [
                    output(lane, "y", given * 2),
                    tensors.write_raw(lane, "z", "BYTES", [1, 1], text),
                    output(lane, "unwanted", given),
                    output(lane, "z", np.zeros((0, 3), np.float32)),
                ]
            )
        )
    return BatchDone(batch.id, responses)


def begin(lane: Lane) -> Batch:
    """Receive a batch of a decoupled model, and begin it."""
    batch = lane.receive()
    assert isinstance(batch, Batch)
    lane.send(BatchBegun(batch.id))
    return batch


def begin_first(lane: Lane, room: int = 1) -> Batch:
    """Offer room for a number of batches, and begin the first one."""
    lane.send(Room(room))
    return begin(lane)


def send_part(lane: Lane, batch: int, requests: int = 1, *, final: bool) -> None:
    """Send a response to each request of a batch: two ones as output `y`."""
    ref = output(lane, "y", np.ones((1, 2), np.float32))
    part = ResponseRef([ref], None, ResponseDetails(final=final))
    lane.send(BatchPart(batch, [part] * requests))


def serve_batches(lane: Lane, serve: Callable[[Batch], None]) -> None:
    """Offer room for one batch of a decoupled model, and serve one after another until the proxy closes the lane."""
    lane.send(Room(1))
    with suppress(LaneClosed):
        while True:
            message = lane.receive()
            if not isinstance(message, Credit):
                assert isinstance(message, Batch)
                serve(message)


def streaming(lane: Lane) -> None:
    """Respond to each request of a decoupled model twice, until the proxy closes the lane."""

    def serve(batch: Batch) -> None:
        lane.send(BatchBegun(batch.id))
        for final in (False, True):
            send_part(lane, batch.id, len(batch.requests), final=final)
        lane.send(BatchDone(batch.id, []))

    serve_batches(lane, serve)


def read_credits(lane: Lane, parts: int) -> list[int]:
    """Receive credits for a number of parts; return what each is for."""
    credits: list[int] = []
    while sum(credits) < parts:
        message = lane.receive()
        assert isinstance(message, Credit)
        credits.append(message.parts)
    return credits


def socket_of(lane: Lane) -> closing[socket.socket]:
    """Return another descriptor of the lane's socket, which the caller closes with a `with` statement."""
    return closing(socket.socket(fileno=os.dup(lane.fileno()), type=socket.SOCK_SEQPACKET))


def wait_for_close(lane: Lane) -> None:
    """Receive messages until the proxy closes the lane; fail if nothing arrives for a minute."""
    lane.set_receive_timeout(60)
    with suppress(LaneClosed):
        while True:
            lane.receive()


def responses(lines: list[str]) -> list[str]:
    """Return the lines about responses."""
    return [line for line in lines if line.startswith("response to ")]


def contents(lines: list[str]) -> list[str]:
    """Return the content of each response: its outputs, or its error."""
    return [line.partition(": ")[2] for line in responses(lines)]
