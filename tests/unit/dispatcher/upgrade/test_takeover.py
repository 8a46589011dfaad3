"""A daemon that cannot use what it was handed: it stops all of that, and starts afresh with its original arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import msgspec
import psutil
import pytest
import trustme

from pytriton._host.install import server_runtime
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton.dispatcher import process
from pytriton.dispatcher.file_checks import FileErrors, check_files
from pytriton.dispatcher.models.persistence.state_dir import Store
from pytriton.dispatcher.upgrade import snapshot, takeover
from pytriton.dispatcher.upgrade.snapshot import Remains


class Afresh(Exception):
    """Raised instead of a fresh start."""


def test_any_failure_starts_fresh_with_the_original_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[Remains, str, Mapping[str, str]]] = []

    def start_fresh(left: Remains, why: str, environ: Mapping[str, str]) -> NoReturn:
        begun.append((left, why, environ))
        raise Afresh

    def unusable(document: bytes) -> NoReturn:
        del os.environ["NOTIFY_SOCKET"]
        raise snapshot.UnusableHandOver("it is of form 99")

    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setattr(takeover, "start_fresh", start_fresh)
    monkeypatch.setattr(takeover, "read_state", unusable)
    left = msgspec.msgpack.encode({"config": b"{}", "helper": [60, 6]})
    with pytest.raises(Afresh):
        process._take_over(snapshot.in_memory(b"pytriton-hand-over 99\n" + left))
    ((remains, why, environ),) = begun
    assert (remains.config, remains.helper) == (b"{}", (60, 6))
    assert "it is of form 99" in why
    assert environ["NOTIFY_SOCKET"] == "/run/notify"


def test_the_kill_on_death_helper_may_finish_and_all_others_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The helper also kills the children's descendants, so it must not be killed with them."""
    reader, writer = os.pipe()
    waits = "import sys; sys.stdin.read(); sys.exit(7)"
    helper = subprocess.Popen([sys.executable, "-c", waits], stdin=reader)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.close(reader)
    own = [psutil.Process(helper.pid), psutil.Process(child.pid)]
    codes: dict[int, int | None] = {}
    waited = psutil.wait_procs

    def wait_procs(processes: list[psutil.Process], timeout: float) -> object:
        found = waited(processes, timeout=timeout)
        codes.update({one.pid: getattr(one, "returncode", None) for one in found[0]})
        return found

    executed: list[tuple[str, list[str], dict[str, str]]] = []
    left = Remains(DaemonConfig().to_json(), (helper.pid, writer))
    kept: list[int] = []  # sockets of the service manager's
    given = {"A": "b", "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "wait_procs", wait_procs)
        patch.setattr(psutil.Process, "children", lambda process: own)
        patch.setattr(os, "dup2", lambda one, other: os.close(one))
        patch.setattr(takeover, "_close_at_execve", lambda but: kept.extend(but))
        patch.setattr(os, "execve", lambda *reported: executed.append(reported))
        takeover.start_fresh(left, "a fault", given)
    helper.returncode = child.returncode = 0  # they have been awaited
    assert child.stdin is not None  # a pipe
    child.stdin.close()
    assert codes == {helper.pid: 7, child.pid: -signal.SIGKILL}
    ((_, arguments, environ),) = executed
    assert arguments[-2:] == ["--because", "a fault"]
    assert environ == given
    assert kept == [3, 4]


def test_a_version_without_write_access_refuses_before_the_handover(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the execve, nothing would be left that serves. The check leaves nothing behind."""
    found = SimpleNamespace(frontend=object(), native=object())
    tried: list[Path] = []
    full = [False]

    def lay_out(runtime: object, folder: Path) -> None:
        (folder / "backends").mkdir(parents=True)
        tried.append(folder)
        if full[0]:
            raise server_runtime.ServerRuntimeError("no room left on the disk")

    monkeypatch.setattr(server_runtime, "find_or_install_server", lambda *_: found)
    monkeypatch.setattr(server_runtime, "lay_out_backends", lay_out)
    run_in, keep_in = tmp_path / "run", tmp_path / "state"
    run_in.mkdir(0o700)
    config = DaemonConfig(runtime_dir=str(run_in), state_dir=str(keep_in)).to_json()
    state = SimpleNamespace(config=config, registrations=[])
    monkeypatch.setattr(snapshot, "decode", lambda document: state)
    assert takeover.check_compatibility(b"").can
    full[0] = True
    verdict = takeover.check_compatibility(b"")
    assert not verdict.can
    assert "cannot write to the runtime directory: no room left on the disk" in verdict.why
    assert tried == [run_in / "trial"] * 2
    assert list(run_in.iterdir()) == []


def _no_registration(folder: Path) -> None:
    (folder / "state" / "models" / "m.registration").unlink()


def _damaged_registration(folder: Path) -> None:
    path = folder / "state" / "models" / "m.registration"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: None, ""),
        (_no_registration, r"is missing a served model: .*m\.registration.*--replace"),
        (_damaged_registration, "is missing a served model: its checksum is wrong"),
        (
            lambda folder: (folder / "state").chmod(0o777),
            "is writable by users other than its owner",
        ),
        (lambda folder: (folder / "hooks.toml").write_text("[["), r"webhooks = .*hooks\.toml"),
        (lambda folder: (folder / "hooks.toml").unlink(), r"hooks\.toml: No such file"),
        (lambda folder: (folder / "key.pem").unlink(), r"management_key = .*No such file"),
        (
            lambda folder: (folder / "key.pem").write_text("half"),
            r"key\.pem: they are not a matching certificate",
        ),
    ],
)
def test_unusable_files_are_refused(
    tmp_path: Path, spoil: Callable[[Path], object], why: str
) -> None:
    """They were valid when the daemon started, which does not read them again before the execve."""
    (tmp_path / "run").mkdir(0o700)
    (tmp_path / "hooks.toml").touch()
    shown, key = tmp_path / "shown.pem", tmp_path / "key.pem"
    own = trustme.CA().issue_cert("localhost")
    own.cert_chain_pems[0].write_to_path(shown)
    own.private_key_pem.write_to_path(key)
    config = DaemonConfig(
        management_address="127.0.0.1:0",
        management_certificate=str(shown),
        management_key=str(key),
        runtime_dir=str(tmp_path / "run"),
        state_dir=str(tmp_path / "state"),
        webhooks=str(tmp_path / "hooks.toml"),
    )
    store = Store(config.state_path)
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"))
    store.write(spec, [b"callable"], 1.5).finish()
    spoil(tmp_path)
    try:
        if why:
            with pytest.raises(FileErrors, match=why):
                check_files(config, ["m"])
        else:
            check_files(config, ["m"])
    finally:
        store.close()
