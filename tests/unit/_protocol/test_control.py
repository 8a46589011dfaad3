"""The requesting end of the control socket, against a real ROUTER."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from pytriton._protocol import control, messages
from pytriton._protocol.control import UNSOLICITED, ControlClient, ControlTimeout
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages import MalformedMessage

#: Takes the frames of one message without its identity, yields the frames of each answer.
Script = Callable[[list[bytes]], Iterator[Sequence[bytes]]]
LONG_S = 60.0
DONE = messages.encode(messages.Done())


class Router:
    """A dispatcher's socket in a thread, with scripted answers."""

    def __init__(self, folder: Path, script: Script) -> None:
        self.endpoint = f"ipc://{folder}/c.sock"
        self.received: list[list[bytes]] = []
        self._script = script
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(self.endpoint)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            identity, *frames = self._socket.recv_multipart()
            if frames == [b"stop"]:
                self._socket.close()
                return
            self.received.append(frames)
            for answer in self._script(frames):
                self._socket.send_multipart([identity, *answer])

    def close(self) -> None:
        with self._context.socket(zmq.DEALER) as stopper:
            stopper.connect(self.endpoint)
            stopper.send(b"stop")
            self._thread.join()
        self._context.term()


@contextmanager
def talking(folder: Path, script: Script) -> Iterator[tuple[ControlClient, Router]]:
    router = Router(folder, script)
    try:
        with closing(ControlClient(router.endpoint)) as client:
            yield client, router
    finally:
        router.close()


def answering(*answers: messages.AnyMessage) -> Script:
    def script(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
        for answer in answers:
            yield control.frames(frames[0], answer)

    return script


def silent(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
    return iter(())


def test_request_and_answer(short_dir: Path) -> None:
    answer = messages.LogLines(["a", "b"])
    with talking(short_dir, answering(answer)) as (client, router):
        asked = messages.GetLogs("m", 2)
        assert client.ask(asked, [b"one", b"\0" * 100_000], timeout_s=LONG_S) == answer
        assert client.ask(asked, timeout_s=None) == answer
    first, second = (control.parse(frames) for frames in router.received)
    assert first[1:] == (asked, [b"one", b"\0" * 100_000])
    assert second[1:] == (asked, [])
    assert len({first[0], second[0], UNSOLICITED}) == 3


def test_progress_comes_in_order_before_the_answer(short_dir: Path) -> None:
    steps = [messages.Progress("load", "loading", done, 3) for done in range(4)]
    seen: list[messages.Progress] = []
    with talking(short_dir, answering(*steps, messages.Done())) as (client, _):
        answer = client.ask(messages.Shutdown(), timeout_s=LONG_S, on_progress=seen.append)
        assert answer == messages.Done()
        assert client.ask(messages.Shutdown(), timeout_s=LONG_S) == messages.Done()
    assert seen == steps


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_progress_resets_the_silence_timeout(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer arrives after the first deadline, and before the one that starts with the progress."""
    clock = Clock()
    monkeypatch.setattr(control, "time", clock)
    late = threading.Event()

    def script(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
        yield control.frames(frames[0], messages.Progress("load", ""))
        assert late.wait(LONG_S)
        time.sleep(0.1)  # a timeout counted from the request would have expired
        yield control.frames(frames[0], messages.Done())

    def outlast(_: messages.Progress) -> None:
        clock.now += 2 * LONG_S
        late.set()

    with talking(short_dir, script) as (client, _):
        answer = client.ask(messages.Shutdown(), timeout_s=LONG_S, on_progress=outlast)
        assert answer == messages.Done()


@pytest.mark.parametrize(
    ("sent", "kind"),
    [("not_found", ErrorKind.NOT_FOUND), ("from the future", ErrorKind.INTERNAL)],
)
def test_a_failure_is_raised_with_its_traceback(
    short_dir: Path, sent: str, kind: ErrorKind
) -> None:
    script = answering(messages.Failure(sent, "no", "Trace"))
    with talking(short_dir, script) as (client, _), pytest.raises(RemoteFailure) as caught:
        client.ask(messages.Shutdown(), timeout_s=LONG_S)
    failure = caught.value
    assert (failure.kind, failure.text, failure.traceback) == (kind, "no", "Trace")


def test_answers_to_a_cancelled_request_are_ignored(short_dir: Path) -> None:
    kept: list[bytes] = []

    def script(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
        kept.append(frames[0])
        if len(kept) == 2:
            yield control.frames(kept[0], messages.Progress("late", ""))
            yield control.frames(kept[0], messages.Failure("internal", "late"))
            yield control.frames(UNSOLICITED, messages.WithdrawLane())
            yield control.frames(kept[1], messages.Done())

    seen: list[messages.Progress] = []
    with talking(short_dir, script) as (client, _):
        with pytest.raises(ControlTimeout):
            client.ask(messages.Shutdown(), timeout_s=0.05)
        answer = client.ask(messages.Shutdown(), timeout_s=LONG_S, on_progress=seen.append)
        assert answer == messages.Done()
    assert seen == []


def test_silence_is_a_timeout_that_names_its_duration(short_dir: Path) -> None:
    with talking(short_dir, silent) as (client, _):
        with pytest.raises(ControlTimeout, match=r"within 0\.05 s"):
            client.ask(messages.Shutdown(), timeout_s=0.05)
        assert client.receive(0) is None


def test_a_missing_dispatcher_is_a_timeout(short_dir: Path) -> None:
    with (
        closing(ControlClient(f"ipc://{short_dir}/none.sock")) as client,
        pytest.raises(ControlTimeout),
    ):
        client.ask(messages.Shutdown(), timeout_s=0.05)


def test_the_dispatchers_exit_is_noticed_without_a_timeout(short_dir: Path) -> None:
    signs = iter([True, True, False])
    with talking(short_dir, silent) as (client, _), pytest.raises(ControlTimeout, match="exited"):
        client.ask(
            messages.Shutdown(), timeout_s=None, life_sign_s=0.01, is_alive=lambda: next(signs)
        )
    assert list(signs) == []


def test_an_answer_is_received_even_if_the_exit_is_noticed_first(short_dir: Path) -> None:
    probed = threading.Event()

    def script(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
        assert probed.wait(LONG_S)
        yield control.frames(frames[0], messages.Progress("stop", "stopping"))
        yield control.frames(frames[0], messages.Done())

    with talking(short_dir, script) as (client, _):

        def answers_and_exits() -> bool:
            probed.set()
            assert client._socket.poll(round(LONG_S * 1000))
            return False

        answer = client.ask(
            messages.Shutdown(), timeout_s=None, life_sign_s=0.01, is_alive=answers_and_exits
        )
        assert answer == messages.Done()


def test_liveness_is_not_probed_while_answers_arrive(short_dir: Path) -> None:
    with talking(short_dir, answering(messages.Done())) as (client, _):
        answer = client.ask(
            messages.Shutdown(), timeout_s=LONG_S, life_sign_s=LONG_S, is_alive=lambda: False
        )
        assert answer == messages.Done()


MALFORMED: dict[str, tuple[Script, str]] = {
    "one frame": (lambda frames: iter([[frames[0]]]), "expected request id and message, got 1"),
    "request id of 3 bytes": (lambda frames: iter([[b"abc", DONE]]), "expected request id"),
    "garbage": (
        lambda frames: iter([[frames[0], b"\xc1garbage"]]),
        "MessagePack|malformed|invalid",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_answer_is_named_and_the_client_continues(short_dir: Path, case: str) -> None:
    malformed, complaint = MALFORMED[case]
    asked = iter([malformed, answering(messages.Done())])
    with talking(short_dir, lambda frames: next(asked)(frames)) as (client, _):
        with pytest.raises(MalformedMessage, match=complaint):
            client.ask(messages.Shutdown(), timeout_s=LONG_S)
        assert client.ask(messages.Shutdown(), timeout_s=LONG_S) == messages.Done()


def test_flush_delivers_messages_before_close(short_dir: Path) -> None:
    heard = threading.Event()

    def script(frames: list[bytes]) -> Iterator[Sequence[bytes]]:
        heard.set()
        return iter(())

    router = Router(short_dir, script)
    try:
        client = ControlClient(router.endpoint)
        client.send(messages.Detach("r", "i"), [bytes(1 << 20)])
        client.flush(LONG_S)
        client.close()
        assert heard.wait(LONG_S)
    finally:
        router.close()
    assert control.parse(router.received[0])[1] == messages.Detach("r", "i")


@pytest.mark.parametrize("parts", [[], [b"12345678"], [b"1234567", DONE], [b"123456789", DONE]])
def test_invalid_frames(parts: list[bytes]) -> None:
    with pytest.raises(MalformedMessage, match=f"got {len(parts)} frames"):
        control.parse(parts)
