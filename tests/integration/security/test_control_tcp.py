"""Control over TCP: only clients with a key get in; with a real daemon."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from support.forks.prefork import command
from support.models.inference import Array, infer_once
from support.models.tensors import X, Y
from support.real_daemon import RunningDaemon, eventually

from pytriton._host.client_keys import KeyStore
from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient, ControlTimeout
from pytriton._protocol.exit_codes import ExitCode
from pytriton.daemon import DaemonClient, connect
from pytriton.decorators import batch
from pytriton.exceptions import DaemonNotRunningError, PyTritonDaemonError
from pytriton.model_config import ModelConfig


@batch
def double(x: Array) -> dict[str, Array]:
    return {"y": x * 2}


def run_keys(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    first, *rest = arguments
    return command("keys", first, "--keys-dir", str(folder), *rest)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def key_file(folder: Path) -> Path:
    """A client's key, created on the command line."""
    path = folder.parent / "alice.pytriton-key"
    assert run_keys(folder, "init").returncode == 0
    made = run_keys(folder, "add", "alice", "--output", str(path))
    assert made.returncode == 0, made.stderr
    return path


@pytest.fixture(scope="module")
def remote(folder: Path, key_file: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon.start(control_tcp="127.0.0.1:0", keys_dir=str(folder)) as daemon:
        yield daemon


def endpoint(daemon: RunningDaemon) -> str:
    return daemon.client.status().control_tcp


def reach(daemon: RunningDaemon, key_file: Path | None = None) -> DaemonClient:
    """Connect with a long timeout: on a loaded machine the handshake may take more than 5 s."""
    return connect(endpoint(daemon), key_file=key_file, timeout_s=60)


def test_thread_workers_are_refused_over_tcp(remote: RunningDaemon, key_file: Path) -> None:
    with reach(remote, key_file) as client:
        with pytest.raises(PyTritonDaemonError, match=r"share memory.*reached over TCP"):
            client.register(double, "far", X, Y, isolation="thread", progress=False)
        assert client.models() == []


def test_a_client_with_a_key_registers_a_model(remote: RunningDaemon, key_file: Path) -> None:
    assert endpoint(remote).startswith("tcp://127.0.0.1:")
    with reach(remote, key_file) as client:
        client.register(double, "far", X, Y, ModelConfig(), progress=False)
        assert infer_once(remote, "far", {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [
            [2, 2]
        ]
        client.unregister("far")
        assert client.models() == []


def test_key_files_are_private_to_their_owner(folder: Path, key_file: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(folder) == mode(folder / "clients") == 0o700
    assert mode(key_file) == mode(folder / "server.key_secret") == 0o600
    assert "secret-key" not in (folder / "clients" / "alice.key").read_text()


def test_a_missing_key_file_is_reported(remote: RunningDaemon, tmp_path: Path) -> None:
    with pytest.raises(
        PyTritonDaemonError, match=r"accepts only clients with a key.*keys add NAME"
    ):
        reach(remote)
    with pytest.raises(PyTritonDaemonError, match="cannot be used"):
        reach(remote, tmp_path / "none")
    (tmp_path / "text").write_text("no key")
    with pytest.raises(PyTritonDaemonError, match="cannot be used"):
        reach(remote, tmp_path / "text")


def test_an_unknown_key_is_refused(remote: RunningDaemon, folder: Path, tmp_path: Path) -> None:
    """It was created for the right server, by someone who knows only its public key."""
    copy = KeyStore(tmp_path / "keys")
    copy.make_server_key()
    for name in ("server.key", "server.key_secret"):
        (copy.folder / name).write_bytes((folder / name).read_bytes())
    copy.add("mallory", tmp_path / "mallory")
    with pytest.raises(PyTritonDaemonError, match=r"refuses this client: it does not know"):
        reach(remote, tmp_path / "mallory")


def test_a_key_for_another_server_is_refused(remote: RunningDaemon, tmp_path: Path) -> None:
    other = KeyStore(tmp_path / "keys")
    other.make_server_key()
    other.add("alice", tmp_path / "alice")
    with pytest.raises(
        PyTritonDaemonError, match=r"refuses this client: .*belongs to another daemon"
    ):
        reach(remote, tmp_path / "alice")


def test_a_removed_key_is_refused_at_once(
    remote: RunningDaemon, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bob"
    assert run_keys(folder, "add", "bob", "-o", str(path)).returncode == 0
    assert run_keys(folder, "list").stdout.split()[::2] == ["alice", "bob"]
    client = reach(remote, path)
    assert run_keys(folder, "remove", "bob").stdout == "removed bob\n"
    with pytest.raises(PyTritonDaemonError, match="refuses this client: it does not know"):
        client.status()
    again = run_keys(folder, "remove", "bob")
    assert again.returncode == ExitCode.USAGE
    assert "there is no client 'bob'; known clients: alice" in again.stderr


def test_unencrypted_messages_are_ignored(remote: RunningDaemon) -> None:
    with closing(ControlClient(endpoint(remote))) as client:

        def is_alive() -> bool:
            client.watch()
            return client.trouble is None

        with pytest.raises(ControlTimeout):
            client.ask(messages.Shutdown(), timeout_s=20, life_sign_s=0.05, is_alive=is_alive)
        assert client.trouble is not None
        assert not client.agreed
    assert remote.client.status().state == "ready"  # though the message was a shutdown


def test_a_port_without_a_daemon_is_reported(key_file: Path) -> None:
    with pytest.raises(DaemonNotRunningError, match=r"No daemon answers at tcp://127.0.0.1:1 "):
        connect("tcp://127.0.0.1:1", timeout_s=0.3, key_file=key_file)


def test_a_client_notices_that_the_daemon_exited(folder: Path, key_file: Path) -> None:
    with RunningDaemon.start(control_tcp="127.0.0.1:0", keys_dir=str(folder)) as daemon:
        address = endpoint(daemon)
        # The test does not wait for long; but a busy machine may need longer than that to connect.
        client = eventually(lambda: _reached_soon(address, key_file), "the daemon answers")
        daemon.client.shutdown()
        assert daemon.process.wait(60) == ExitCode.OK
        with pytest.raises(DaemonNotRunningError, match="No daemon answers"):
            client.unregister("none")


def _reached_soon(address: str, key_file: Path) -> DaemonClient | None:
    with suppress(DaemonNotRunningError):
        return connect(address, key_file=key_file, timeout_s=1.0)
    return None


def test_a_start_without_a_server_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"there is no server key in .*keys init"):
        RunningDaemon.start(control_tcp="127.0.0.1:0", keys_dir=str(tmp_path / "none"))


def test_commands_report_errors(folder: Path, key_file: Path, tmp_path: Path) -> None:
    for arguments, said in [
        (("init",), "already exists. To replace it"),
        (("add", "../x"), "is not a valid name"),
        (("add", "alice", "-o", str(tmp_path / "a")), "already exists"),
        (("add", "eve", "-o", str(key_file)), "already exists"),
    ]:
        done = run_keys(folder, *arguments)
        assert (done.returncode, said in done.stderr) == (ExitCode.USAGE, True), done.stderr
    assert "there is no server key" in run_keys(tmp_path / "none", "add", "x").stderr
