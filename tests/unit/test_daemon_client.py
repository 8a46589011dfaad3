"""The client against a scripted dispatcher: a real ROUTER socket that speaks the real messages."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.fake_dispatcher import SERVER, FakeDispatcher
from support.models.descriptors import leaves_open

from pytriton._control.connection import Connection
from pytriton._protocol import messages
from pytriton._protocol.files.rundir import ENV_RUNTIME_DIR
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import (
    DaemonNotRunningError,
    ModelExistsError,
    ModelNotFoundError,
    PyTritonDaemonError,
    PyTritonValidationError,
    RegistrationError,
)
from pytriton.model_config import Tensor

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))


def infer(requests: Any) -> Any:
    return requests


def info(name: str, *states: str) -> messages.ModelInfo:
    instances = [
        messages.InstanceInfo(
            index, state, 100 + index, last_exit="killed by signal 9" if state == "failed" else None
        )
        for index, state in enumerate(states or ("ready",))
    ]
    return messages.ModelInfo(name, 1, "ready", instances, url=f"http://h:1/v2/models/{name}")


@pytest.fixture
def fake() -> Iterator[FakeDispatcher]:
    dispatcher = FakeDispatcher()
    yield dispatcher
    dispatcher.close()


@pytest.fixture
def client(fake: FakeDispatcher) -> DaemonClient:
    return connect(fake.rundir.path, timeout_s=60)


def register(client: DaemonClient, **more: Any) -> Any:
    return client.register(infer, "m", [X], [Y], progress=more.pop("progress", False), **more)


# ── finding the daemon ───────────────────────────────────────────────────────────────────────────


def test_a_missing_daemon_names_its_folder_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(DaemonNotRunningError, match="pytriton-daemon start") as caught:
        connect(tmp_path / "none")
    assert str(tmp_path / "none") in str(caught.value)


def test_an_unlocked_lock_file_means_no_daemon(fake: FakeDispatcher) -> None:
    fake.die()
    with pytest.raises(DaemonNotRunningError, match="No daemon is running"):
        connect(fake.rundir.path)


def test_another_daemon_of_this_user_is_pointed_at(
    fake: FakeDispatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "pytriton-daemon"
    usual.symlink_to(fake.rundir.path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(DaemonNotRunningError, match="Daemons run in: ") as caught:
        connect(tmp_path / "none")
    assert str(usual) in str(caught.value)


def test_the_environment_names_the_daemon(
    fake: FakeDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_RUNTIME_DIR, str(fake.rundir.path))
    with connect(timeout_s=60) as client:
        assert client.status().server == SERVER


def test_the_error_says_that_a_silent_daemon_runs(fake: FakeDispatcher) -> None:
    del fake.answers[messages.GetStatus]
    with pytest.raises(
        DaemonNotRunningError, match=r"pid 4194000.*runs, but did not answer within 0\.3 s"
    ):
        connect(fake.rundir.path, timeout_s=0.3)


class OfTheFuture(messages.Message, frozen=True, tag="OfTheFuture"):
    """A message that this version cannot read."""


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (messages.Done(), r"different version.*restart"),
        (OfTheFuture(), r"does not understand.*OfTheFuture.*Install the same version"),
    ],
)
def test_an_unexpected_answer_names_the_version_mismatch(
    fake: FakeDispatcher, answer: Any, words: str
) -> None:
    fake.answers[messages.GetStatus] = lambda _: [answer]
    with pytest.raises(PyTritonDaemonError, match=words):
        connect(fake.rundir.path, timeout_s=60)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda client: client.unregister(None), r"\(Unregister\): name: Expected str, got None\."),
        (lambda client: client.unregister(object()), r"\(Unregister\): Encoding objects of type"),
        (lambda client: client.logs("linear", lines="9"), "lines: Expected int, got str"),
    ],
)
def test_a_value_of_the_wrong_type_is_reported_and_not_sent(
    fake: FakeDispatcher, client: DaemonClient, ask: Callable[[Any], Any], text: str
) -> None:
    """The dispatcher drops unreadable messages, so there would be no answer."""
    fake.heard.clear()
    with pytest.raises(PyTritonValidationError, match=text):
        ask(client)
    assert fake.heard == []


def test_connecting_does_not_ask_for_the_models(fake: FakeDispatcher) -> None:
    asked: list[messages.AnyMessage] = []
    answer = fake.answers[messages.GetStatus]

    def recorded(message: messages.AnyMessage) -> Any:
        asked.append(message)
        return answer(message)

    fake.answers[messages.GetStatus] = recorded
    with connect(fake.rundir.path, timeout_s=60) as client:
        client.status()
    assert asked == [messages.GetStatus(models=False), messages.GetStatus(models=True)]


# ── registering ──────────────────────────────────────────────────────────────────────────────────


def test_registrations_arrive_with_their_payloads(
    fake: FakeDispatcher, client: DaemonClient
) -> None:
    fake.answers[messages.Register] = lambda _: [messages.Registered(info("m", "ready", "ready"))]
    model = register(client, devices=[0, "cpu"], replace=True, load_timeout_s=7, model_version=3)
    message = fake.heard[-1]
    assert isinstance(message, messages.Register)
    assert message.replace
    assert (message.spec.name, message.spec.instances, message.spec.devices) == ("m", 2, ["0", ""])
    assert (message.spec.load_timeout_s, message.spec.version) == (7, 3)
    assert message.spec.world.python == sys.executable
    assert [payload[:4] for payload in fake.payloads[-1]] == [b"PTD1"]
    assert (model.name, model.version, model.url) == ("m", 1, "http://h:1/v2/models/m")
    assert repr(model) == "Model('m', version=1, url='http://h:1/v2/models/m')"


def test_progress_events_arrive_in_order(fake: FakeDispatcher, client: DaemonClient) -> None:
    events = [messages.Progress("loading", f"worker {n} of 2", n, 2) for n in (1, 2)]
    fake.answers[messages.Register] = lambda _: [*events, messages.Registered(info("m"))]
    seen: list[messages.Progress] = []
    register(client, progress=seen.append)
    assert seen == events


@pytest.mark.parametrize(
    ("kind", "exception"),
    [("exists", ModelExistsError), ("load_failed", RegistrationError), ("invalid", RegistrationError),
     ("unavailable", RegistrationError), ("internal", RegistrationError), ("of the future", RegistrationError)],
)  # fmt: skip
def test_a_failure_becomes_one_exception_with_the_remote_traceback(
    kind: str, exception: type[RegistrationError], fake: FakeDispatcher, client: DaemonClient
) -> None:
    failure = messages.Failure(
        kind, "the weights are gone", "Traceback ...\n  FileNotFoundError: w.pt\n"
    )
    fake.answers[messages.Register] = lambda _: [failure]
    with pytest.raises(exception, match="the weights are gone") as caught:
        register(client)
    assert type(caught.value) is exception
    assert str(caught.value).endswith("Remote traceback:\nTraceback ...\n  FileNotFoundError: w.pt")
    assert caught.value.model_name == "m"


def test_a_daemon_that_dies_meanwhile_is_noticed(
    fake: FakeDispatcher, client: DaemonClient
) -> None:
    """Loading may take any time: only the daemon's death ends the wait."""
    fake.die_on = messages.Register
    with pytest.raises(
        DaemonNotRunningError, match=r"pid 4194000\).* exited before it answered Register"
    ):
        register(client)


def test_a_daemon_that_was_restarted_meanwhile_is_noticed(
    fake: FakeDispatcher, client: DaemonClient
) -> None:
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            register(client)
        except DaemonNotRunningError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    fake.silent.wait()
    fake.die_and_come_back()
    thread.join()
    assert "pid 4194000" in str(failed[0])


def test_a_registration_waits_for_a_slow_daemon(fake: FakeDispatcher) -> None:
    """`timeout_s` applies to immediate answers; a model may load for hours."""
    client = DaemonClient(Connection(fake.rundir), 0.05)  # which requests nothing slow immediately
    looked = threading.Event()
    answered = threading.Event()

    def answer(_: messages.AnyMessage) -> Sequence[messages.AnyMessage]:
        looked.wait(0.5)  # never set: this is the silence
        answered.set()
        return [messages.Registered(info("m"))]

    fake.answers[messages.Register] = answer
    assert register(client).name == "m"
    assert answered.is_set()


def test_a_callback_that_fails_ends_the_wait_with_its_own_error(
    fake: FakeDispatcher, client: DaemonClient
) -> None:
    fake.answers[messages.Register] = lambda _: [
        messages.Progress("a", "b"),
        messages.Registered(info("m")),
    ]

    def fail(_: messages.Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        register(client, progress=fail)
    assert client.status().state == "ready", "the next question gets its own answer"


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def test_models_by_name_and_in_order(fake: FakeDispatcher, client: DaemonClient) -> None:
    fake.answers[messages.ListModels] = lambda _: [
        messages.Models([info("linear"), info("digits", "ready", "loading")])
    ]
    assert [model.name for model in client.models()] == ["linear", "digits"]
    model = client.model("digits")
    assert [one.state for one in model.instances] == ["ready", "loading"]
    assert model.grpc_url == "grpc://h:2"
    with pytest.raises(
        ModelNotFoundError, match=r"'linaer'.*linear, digits.*Did you mean 'linear'"
    ):
        client.model("linaer")


def test_unregistering_and_logs_name_the_model(fake: FakeDispatcher, client: DaemonClient) -> None:
    fake.answers[messages.ListModels] = lambda _: [messages.Models([info("m")])]
    fake.answers[messages.Unregister] = lambda _: [messages.Done()]
    fake.answers[messages.GetLogs] = lambda _: [messages.LogLines(["a", "b"])]
    client.model("m").unregister()
    assert fake.heard[-1:] == [messages.Unregister("m")]
    assert client.logs("m", lines=2) == ["a", "b"]
    assert fake.heard[-1:] == [messages.GetLogs("m", 2)]
    fake.answers[messages.Unregister] = lambda _: [messages.Failure("not_found", "no model 'm'")]
    with pytest.raises(ModelNotFoundError, match="no model 'm'") as caught:
        client.unregister("m")
    assert caught.value.model_name == "m"


def test_shutdown_is_forwarded(fake: FakeDispatcher, client: DaemonClient) -> None:
    fake.answers[messages.Shutdown] = lambda _: [messages.Done()]
    client.shutdown()
    assert fake.heard[-1] == messages.Shutdown()


# ── threads and forks ────────────────────────────────────────────────────────────────────────────


def test_many_threads_get_their_own_answers(fake: FakeDispatcher, client: DaemonClient) -> None:
    def answer(message: messages.AnyMessage) -> Sequence[messages.AnyMessage]:
        assert isinstance(message, messages.GetLogs)
        return [messages.LogLines([str(message.lines)])]

    fake.answers[messages.GetLogs] = answer
    got: dict[int, list[str]] = {}

    def ask(first: int) -> None:
        for number in range(first, first + 20):
            got[number] = client.logs(lines=number)

    threads = [threading.Thread(target=ask, args=(100 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {100 * n + m: [str(100 * n + m)] for n in range(8) for m in range(20)}


@pytest.mark.programs
def test_a_client_works_in_a_forked_child(fake: FakeDispatcher) -> None:
    code = (
        "import os, sys\nfrom pytriton.daemon import connect\n"
        "client = connect(sys.argv[1], timeout_s=60)\n"
        "pid = os.fork()\n"
        "os.write(1, client.status().state.encode() + b'\\n')\n"
        "if pid: sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(fake.rundir.path)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["ready", "ready"], "")


def test_no_descriptor_stays_open_between_calls(fake: FakeDispatcher, client: DaemonClient) -> None:
    client.status()
    with leaves_open():
        # The fake's own end of a connection that was closed may take a moment to go.
        for _ in range(50):
            client.status()


@pytest.mark.programs
def test_zeromq_is_imported_with_the_first_request(tmp_path: Path) -> None:
    code = "import sys, pytriton.daemon; print([n for n in ('zmq', 'rich', 'cloudpickle') if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
