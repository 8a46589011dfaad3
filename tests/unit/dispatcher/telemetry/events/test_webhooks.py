"""Webhooks: posts are signed, failures are retried, lost events are counted, and emitters never wait."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import eventually

from pytriton._protocol.messages.client import Event
from pytriton.dispatcher.telemetry.events import webhook_http, webhooks
from pytriton.dispatcher.telemetry.events.webhooks import (
    Hook,
    Webhook,
    WebhookError,
    Webhooks,
    read_hooks,
)

SECRET = b"0123456789abcdef-secret"


class Receiver:
    """An HTTP server with scripted answers that records what it receives."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.path, dict(self.headers), body))
                receiver.may_answer.wait(30)
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=hidden-token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def serials(self) -> list[int]:
        return [one["serial"] for _, _, body in self.posts for one in json.loads(body)["events"]]

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(webhooks, "_INITIAL_DELAY_S", 0.001)
    monkeypatch.setattr(webhooks, "_MAX_DELAY_S", 0.002)
    monkeypatch.setattr(webhooks, "_POST_INTERVAL_S", 0.0)
    monkeypatch.setattr(webhooks, "_CLOSE_TIMEOUT_S", 60.0)
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def hook(receiver: Receiver) -> Webhook:
    return Webhook(Hook("oncall", receiver.url, SECRET))


def event(serial: int, kind: str = "crashed", model: str = "m", ago_s: float = 0.0) -> Event:
    return Event(serial, time.time() - ago_s, kind, model, reason="signal 11")


def settled(hook: Webhook, sent: int, dropped: int = 0) -> None:
    def done() -> bool:
        return (hook.metrics().sent, hook.metrics().dropped) == (sent, dropped)

    eventually(done, lambda: f"{sent} sent, {dropped} dropped: {hook.metrics()}")


def test_events_are_signed(receiver: Receiver, hook: Webhook) -> None:
    hook.enqueue(event(7))
    settled(hook, 1)
    ((path, headers, body),) = receiver.posts
    assert path == "/hook?token=hidden-token"
    at = headers["Pytriton-Timestamp"]
    assert abs(int(at) - time.time()) < 60
    digest = hmac.new(SECRET, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["Pytriton-Signature"] == f"sha256={digest}"
    (reported,) = json.loads(body)["events"]
    assert (reported["kind"], reported["model"], reported["reason"]) == (
        "crashed",
        "m",
        "signal 11",
    )


def test_only_matching_events_are_posted(receiver: Receiver) -> None:
    kinds, models = frozenset({"crashed", "restart_limit_reached"}), frozenset({"m"})
    hook = Webhook(Hook("oncall", receiver.url, SECRET, kinds, models))
    for one in (
        event(1, "ready"),
        event(2, model="other"),
        event(3),
        event(4, "restart_limit_reached"),
    ):
        hook.enqueue(one)
    settled(hook, 2)
    assert receiver.serials() == [3, 4]


def test_failed_deliveries_are_retried_in_order_with_the_same_id(
    receiver: Receiver, hook: Webhook, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.answers = [500, 503, 429]
    receiver.may_answer.clear()
    hook.enqueue(event(1))
    eventually(lambda: receiver.posts, "the first post")
    hook.enqueue(event(2, "restart_limit_reached"))
    receiver.may_answer.set()
    settled(hook, 2)
    serials = receiver.serials()
    assert serials[0] == 1
    assert serials[-2:] == [1, 2]
    assert hook.metrics().failures == 3
    said = "".join(capfd.readouterr())
    assert "hidden-token" not in said
    assert SECRET.decode() not in said


@pytest.mark.parametrize("code", [400, 404, 302, 307])
def test_rejected_events_are_dropped_and_redirects_not_followed(
    receiver: Receiver, hook: Webhook, code: int
) -> None:
    receiver.answers = [code]
    hook.enqueue(event(1))
    settled(hook, 0, dropped=1)
    hook.enqueue(event(2))
    settled(hook, 1, dropped=1)
    assert [path for path, _, _ in receiver.posts] == ["/hook?token=hidden-token"] * 2


def test_emitters_do_not_wait_and_the_oldest_events_are_dropped(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "_MAX_WAITING", 20)
    receiver.may_answer.clear()
    hook.enqueue(event(0))
    eventually(lambda: receiver.posts, "the first post")
    for serial in range(1, 101):
        hook.enqueue(event(serial, model=f"m{serial}"))
    assert hook.metrics().waiting == 20
    receiver.may_answer.set()
    settled(hook, 21, dropped=80)
    assert receiver.serials() == [0, *range(81, 101)]


def test_a_crash_loop_is_coalesced(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first event is posted at once; later ones wait for the interval, one for each kind and instance."""
    monkeypatch.setattr(webhooks, "_POST_INTERVAL_S", 3600.0)
    hook.enqueue(event(0))
    settled(hook, 1)
    for serial in range(1, 601, 2):
        hook.enqueue(event(serial))
        hook.enqueue(event(serial + 1, "ready"))
    hook.enqueue(event(601, model="other"))
    assert hook.metrics().waiting == 601
    hook.begin_close()
    hook.join(30)
    assert hook.metrics().sent == 602
    first, second = (json.loads(body)["events"] for _, _, body in receiver.posts)
    assert [(one["serial"], one.get("repeats")) for one in first] == [(0, None)]
    assert [(one["serial"], one.get("repeats")) for one in second] == [
        (599, 300),
        (600, 300),
        (601, None),
    ]


def test_events_that_could_not_be_posted_are_coalesced_with_later_ones(
    receiver: Receiver, hook: Webhook
) -> None:
    receiver.answers = [500]
    receiver.may_answer.clear()
    for serial in (1, 2):
        hook.enqueue(event(serial, model=f"m{serial}"))
    eventually(lambda: receiver.posts, "the first post")
    hook.enqueue(event(3, model="m1"))
    receiver.may_answer.set()
    settled(hook, 3)
    _, _, last = receiver.posts[-1]
    reported = {
        one["model"]: (one["serial"], one.get("repeats")) for one in json.loads(last)["events"]
    }
    assert reported["m1"] == (3, 2)


@pytest.mark.parametrize(
    ("scheme", "begins"),
    [("http", b"HTTP/1.1 "), ("https", b"\x16\x03\x03\x3f\xff\x02")],
    ids=["http", "https"],
)
def test_a_slow_answer_is_aborted(
    monkeypatch: pytest.MonkeyPatch, scheme: str, begins: bytes
) -> None:
    monkeypatch.setattr(webhook_http, "_POST_TIMEOUT_S", 0.3)
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.sendall(begins)
            while not over.wait(0.02):
                connection.sendall(b"0")

    def accept() -> None:
        while not over.is_set():
            drip(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        hook = Webhook(Hook("slow", f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/", SECRET))
        hook.enqueue(event(1))
        try:
            eventually(lambda: hook.metrics().failures, "the end of a try")
            hook.begin_close()
            hook.join(30)
        finally:
            over.set()
            with socket.create_connection(listener.getsockname()):
                accepting.join(30)


def test_undeliverable_events_are_dropped_after_an_hour() -> None:
    hook = Webhook(Hook("gone", "http://127.0.0.1:9/", SECRET))
    hook.enqueue(event(1, ago_s=4000))
    settled(hook, 0, dropped=1)
    hook.enqueue(event(2))
    eventually(lambda: hook.metrics().failures >= 2, "another try")
    assert hook.metrics().dropped == 1
    hook.begin_close()
    hook.join(30)


def test_unposted_events_are_posted_after_an_upgrade(receiver: Receiver) -> None:
    """Including one that was being posted, whose outcome is unknown."""
    receiver.may_answer.clear()
    hook = Hook("oncall", receiver.url, SECRET)
    former, other = Webhooks([hook]), Webhooks([hook])
    former.enqueue(event(7))
    eventually(lambda: receiver.posts, "it is being posted")
    former.enqueue(event(8))
    unposted = former.unposted()
    assert [one.serial for one in unposted["oncall"]] == [7, 8]
    receiver.may_answer.set()
    other.adopt({**unposted, "of another file": [event(9)]})
    eventually(lambda: other.metrics()["oncall"].sent == 2, "both are posted")
    for one in (former, other):
        one.close()
    assert former.unposted() == {"oncall": []}


def test_pending_events_are_posted_on_close(receiver: Receiver) -> None:
    hooks = Webhooks([Hook("a", receiver.url, SECRET), Hook("b", receiver.url, SECRET)])
    for serial in range(120):
        hooks.enqueue(event(serial))
    hooks.close()
    assert [one.sent for one in hooks.metrics().values()] == [120, 120]


# ── the file ─────────────────────────────────────────────────────────────────────────────────────

GOOD = {"name": '"oncall"', "url": '"https://h.example/x"', "secret_file": '"s"'}


def write(folder: Path, **changed: str) -> str:
    (folder / "s").write_bytes(SECRET + b"\n")
    (folder / "s").chmod(0o600)
    lines = [f"{name} = {value}" for name, value in {**GOOD, **changed}.items() if value]
    file = folder / "hooks.toml"
    file.write_text("[[webhook]]\n" + "\n".join(lines) + "\n")
    return str(file)


def test_webhooks_are_read_from_a_file(tmp_path: Path) -> None:
    (hook,) = read_hooks(write(tmp_path, kinds='["crashed"]', models='["m"]'))
    assert hook[:3] == ("oncall", "https://h.example/x", SECRET)
    assert (hook.kinds, hook.models) == (frozenset({"crashed"}), frozenset({"m"}))
    assert "h.example" not in repr(hook)
    assert SECRET.decode() not in repr(hook)
    assert read_hooks(None) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": '"ftp://h/"'}, "http://"),
        ({"url": '"https:///x"'}, "http://"),
        ({"url": '"https://h:99999/"'}, "http://"),
        ({"url": '"https://h/\\n"'}, "http://"),
        ({"url": "7"}, "url"),
        ({"url": ""}, "url"),
        ({"name": '"a b"'}, "unique name"),
        ({"kinds": '["crash"]'}, "unknown event kind crash"),
        ({"kind": '["crashed"]'}, "unknown field `kind`"),
        ({"secret_file": '"none"'}, "No such file"),
        ({"secret_file": '"open"'}, "chmod 600"),
        ({"secret_file": '"short"'}, "at least 16 bytes"),
        ({"name": "oncall"}, "line 2"),
    ],
)
def test_errors_in_the_configuration_are_reported(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    (tmp_path / "open").write_bytes(SECRET)
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "short").write_bytes(b"short")
    (tmp_path / "short").chmod(0o600)
    with pytest.raises(WebhookError) as error:
        read_hooks(write(tmp_path, **changed))
    assert said in str(error.value)
    assert "h.example" not in str(error.value)


def test_names_are_unique_and_the_file_must_exist(tmp_path: Path) -> None:
    file = Path(write(tmp_path))
    file.write_text(file.read_text() * 2)
    with pytest.raises(WebhookError, match="a unique name"):
        read_hooks(str(file))
    with pytest.raises(WebhookError, match="No such file"):
        read_hooks(str(tmp_path / "none.toml"))


def test_a_post_without_a_deadline_thread_is_retried(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Timer.start, [RuntimeError("can't start new thread")]

    def short(timer: threading.Timer) -> None:
        if failures:
            raise failures.pop()
        start(timer)

    monkeypatch.setattr(threading.Timer, "start", short)
    hook.enqueue(event(7))
    settled(hook, 1)
    assert hook.metrics().failures == 1


def test_a_failed_thread_start_is_retried_with_the_next_event(
    receiver: Receiver, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError):
            hook.enqueue(event(7))
    hook.enqueue(event(8, "restart_limit_reached"))
    settled(hook, 2)
    assert receiver.serials() == [7, 8]


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
