"""A scripted dispatcher: a real ROUTER socket that speaks the real messages."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq

from pytriton._protocol import control, messages
from pytriton._protocol.files.rundir import RuntimeDir

SERVER = messages.ServerInfo("ready", 2, http_url="http://h:1", grpc_url="grpc://h:2")
Answer = Callable[[messages.AnyMessage], Sequence[messages.AnyMessage]]


def status(*models: messages.ModelInfo) -> messages.Status:
    return messages.Status("0", 1, "py", "dir", "ready", 0.0, SERVER, list(models))


class FakeDispatcher:
    """Holds the lock of a runtime directory, and answers in its own thread.

    `answers` maps a message type to the messages sent back in order; any other message gets no
    answer. Every message is recorded in `heard`, its payloads in `payloads`.
    """

    def __init__(self) -> None:
        # Short: a unix socket's path has at most 107 bytes.
        self.rundir = RuntimeDir(Path(tempfile.mkdtemp(prefix="ptd-")))
        self.answers: dict[type, Answer] = {messages.GetStatus: lambda _: [status()]}
        self.heard: list[messages.AnyMessage] = []
        self.payloads: list[list[bytes]] = []
        #: Payloads of each message that is sent back.
        self.sent_payloads: list[bytes] = []
        self.faults: list[Exception] = []
        self.silent = threading.Event()
        self.die_on: type | None = None
        self._lock = self._take_lock("4194000")
        self._context = zmq.Context()
        self._end = threading.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()

    def die(self) -> None:
        """End as a killed daemon does: the kernel releases its lock, and nobody answers."""
        self._lock.close()

    def die_and_come_back(self) -> None:
        self._lock.close()
        self._lock = self._take_lock("4194001")

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._context.term()
        self._lock.close()
        shutil.rmtree(self.rundir.path)
        assert self.faults == [], self.faults

    def _take_lock(self, pid: str) -> Any:
        lock = open(self.rundir.lock_file, "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(pid)
        lock.flush()
        return lock

    def _run(self, started: threading.Event) -> None:
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.bind(self.rundir.control_endpoint)
        started.set()
        while not self._end.is_set():
            if not router.poll(50):
                continue
            identity, *parts = router.recv_multipart()
            try:
                self._serve(router, identity, parts)
            except Exception as error:
                # Raised in close(); the client must not hang.
                self.faults.append(error)
                failure = messages.Failure("internal", f"fault of the fake: {error!r}")
                router.send_multipart([identity, *control.frames(parts[0], failure)])
        router.close()

    def _serve(self, router: Any, identity: bytes, parts: list[bytes]) -> None:
        request_id, message, payloads = control.parse(parts)
        self.heard.append(message)
        self.payloads.append(payloads)
        if type(message) is self.die_on:
            self.die()
            return
        answer = self.answers.get(type(message))
        if answer is None:
            self.silent.set()
            return
        for reply in answer(message):
            frames = control.frames(request_id, reply, self.sent_payloads)
            router.send_multipart([identity, *frames])
