"""`doctor`: its findings on this machine, and on machines with one fault each."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from pytriton._host.doctor import diagnosis, machine_checks
from pytriton._host.doctor.diagnosis import run_checks
from pytriton._host.doctor.machine_checks import Check
from pytriton._host.install import compiled_frontend, compiled_proxy, interpreters
from pytriton._host.install.server_runtime import ServerChoice, choice_of
from pytriton._host.settings.declarations import DaemonConfig

HOST = "127.0.0.1"


_asked: dict[object, interpreters.Interpreter | interpreters.Refusal] = {}


@pytest.fixture(autouse=True)
def _pythons_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query each Python once: every check would start two processes of 25 ms each."""
    examine = interpreters.examine

    def remembered(
        executable: Path, versions: Collection[tuple[int, int]]
    ) -> interpreters.Interpreter | interpreters.Refusal:
        key = executable, tuple(versions), os.environ.get("PATH")
        if key not in _asked:
            _asked[key] = examine(executable, versions)
        return _asked[key]

    monkeypatch.setattr(interpreters, "examine", remembered)


@pytest.fixture
def choice(tmp_path: Path) -> ServerChoice:
    return ServerChoice(cache_dir=tmp_path / "cache")


def by_name(checks: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


@pytest.mark.programs
def test_every_check_reports_a_result_and_leaves_nothing_behind(
    choice: ServerChoice, tmp_path: Path
) -> None:
    ports = {"http_port": (HOST, 0), "grpc_port": (HOST, 0)}
    checks = by_name(run_checks(choice, ports=ports, runtime_dir=tmp_path / "run"))
    assert list(checks) == [
        "machine",
        "distribution",
        "proxy Python",
        "tritonserver",
        "known faults",
        "core faults",
        "proxy",
        "frontend",
        "cache",
        "port http_port",
        "port grpc_port",
        "runtime directory",
        "/dev/shm",
        "memfd",
        "pidfd",
        "open files",
        "GPUs",
    ]
    for check in checks.values():
        assert check.detail
        assert check.mend or check.status == "ok"
        assert "check itself failed" not in check.detail
        reported = json.loads(json.dumps(check.as_dict()))
        assert reported == {
            "name": check.name,
            "status": check.status,
            "detail": check.detail,
            "mend": check.mend,
        }
    assert checks["memfd"].status == checks["pidfd"].status == "ok"
    assert checks["runtime directory"].status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_the_state_directory_is_tested_by_writing(
    choice: ServerChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that its disk accepts writes; the directory need not exist yet."""
    path = tmp_path / "not" / "there"
    check = by_name(run_checks(choice, state_dir=path))["state directory"]
    assert check.status == "ok"
    assert check.detail.startswith(f"{path}: ")

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    check = by_name(run_checks(choice, state_dir=path))["state directory"]
    assert check.status == "problem"
    assert "1024 KiB could not be written: No space left on device" in check.detail
    assert "--state-dir" in check.mend
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_reported_with_its_holder(choice: ServerChoice, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as listener:
        taken = (HOST, listener.getsockname()[1])
        ports = {"http_port": taken, "openai_port": taken, "grpc_port": ("127.0.0.2", taken[1])}
        checks = by_name(run_checks(choice, ports=ports, runtime_dir=tmp_path))
    assert checks["port grpc_port"].status == "ok"
    assert checks["port openai_port"].status == "warning"  # until a model asks for it
    assert "once a model uses it" in checks["port openai_port"].detail
    assert checks["port http_port"].status == "problem"
    assert f"pid {os.getpid()}" in checks["port http_port"].detail


@pytest.mark.parametrize("of_child", [False, True])
def test_a_port_of_the_running_daemon_is_not_a_problem(
    of_child: bool, choice: ServerChoice, tmp_path: Path
) -> None:
    """tritonserver, its child, has the ports."""
    daemon = os.getppid() if of_child else os.getpid()
    with socket.create_server((HOST, 0)) as listener:
        ports = {"http_port": (HOST, listener.getsockname()[1])}
        checks = by_name(run_checks(choice, ports=ports, runtime_dir=tmp_path, daemon=daemon))
        other = by_name(run_checks(choice, ports=ports, runtime_dir=tmp_path, daemon=1 << 22))
    assert checks["port http_port"].status == "ok"
    assert "is used by the running daemon" in checks["port http_port"].detail
    assert other["port http_port"].status == "problem"


def test_known_vulnerabilities_matter_if_the_ports_are_reachable(
    choice: ServerChoice, tmp_path: Path
) -> None:
    native = by_name(run_checks(choice, runtime_dir=tmp_path))["known faults"]
    assert native.status == "ok"
    assert "in the frontends that the native frontend replaces" in native.detail
    unclear = by_name(run_checks(choice, runtime_dir=tmp_path, exposed=["x"]))["known faults"]
    assert unclear.status == "warning"
    assert "the bulletins do not name the affected part" in unclear.detail
    assert "upgrade tritonserver" in unclear.mend
    choice = replace(choice, frontend="triton")
    apart = by_name(run_checks(choice, runtime_dir=tmp_path))["known faults"]
    assert apart.status == "ok"
    assert "only this machine can reach it" in apart.detail
    exposed = ["http_address 0.0.0.0"]
    reached = by_name(run_checks(choice, runtime_dir=tmp_path, exposed=exposed))["known faults"]
    assert reached.status == "warning"
    assert "CVE-2025-23310" in reached.detail
    assert "http_address 0.0.0.0" in reached.detail
    assert "newer tritonserver" in reached.mend


@pytest.mark.parametrize(
    ("frontend", "compiler", "status", "words"),
    [
        ("auto", "/usr/bin/gcc", "ok", "with /usr/bin/gcc"),
        ("auto", None, "warning", "NVIDIA's executable is used"),
        ("native", None, "problem", "no C compiler"),
        ("triton", None, "ok", "as configured"),
    ],
)
def test_the_frontend_that_would_serve_is_named(
    choice: ServerChoice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frontend: str,
    compiler: str | None,
    status: str,
    words: str,
) -> None:
    monkeypatch.setattr(diagnosis, "compiler", lambda: compiler)
    monkeypatch.setattr(compiled_frontend, "is_built", lambda _: False)
    checks = by_name(run_checks(replace(choice, frontend=frontend), runtime_dir=tmp_path / "run"))
    assert checks["frontend"].status == status
    assert words in checks["frontend"].detail
    assert bool(checks["frontend"].mend) is (status != "ok")


def test_wrong_settings_are_problems(tmp_path: Path) -> None:
    choice = ServerChoice(
        tritonserver=tmp_path / "absent", proxy_python=tmp_path / "python", cache_dir=tmp_path
    )
    checks = by_name(run_checks(choice, runtime_dir=tmp_path / "run"))
    assert checks["tritonserver"].status == "problem"
    assert f"{tmp_path}/absent does not exist" in checks["tritonserver"].detail
    assert checks["proxy Python"].status == "problem"
    assert f"{tmp_path}/python" in checks["proxy Python"].detail


@pytest.mark.parametrize(
    ("options", "python_backend", "status"),
    [
        ({}, False, "ok"),
        ({"allow-vertex-ai": "true", "vertex-ai-default-model": "m"}, False, "ok"),
        ({}, True, "problem"),
    ],
)
def test_a_missing_proxy_python_affects_only_models_that_need_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str | list[str]],
    python_backend: bool,
    status: str,
) -> None:
    """Vertex AI's frontend does not need it."""
    monkeypatch.setattr(interpreters, "_all_candidates", lambda _: iter(()))
    config = DaemonConfig(cache_dir=str(tmp_path / "cache"), tritonserver_options=options)
    choice = choice_of(config, python_backend=python_backend)
    check = by_name(run_checks(choice, runtime_dir=tmp_path / "run"))["proxy Python"]
    assert check.status == status
    assert check.detail.startswith(
        "not found, and not needed" if status == "ok" else "no Python for the proxy"
    )


def test_an_unusable_server_is_a_problem(tmp_path: Path) -> None:
    for folder in ("bin", "backends/python"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "backends/python/libtriton_python.so").touch()
    (tmp_path / "backends/python/triton_python_backend_stub").write_bytes(b"libpython3.11.so.1.0")
    binary = tmp_path / "bin/tritonserver"
    binary.write_text("#!/bin/sh\necho cannot open shared object >&2; exit 127\n")
    binary.chmod(0o755)
    choice = ServerChoice(tritonserver=tmp_path, cache_dir=tmp_path / "cache")
    check = by_name(run_checks(choice, runtime_dir=tmp_path / "run"))["tritonserver"]
    assert check.status == "problem"
    assert "it does not run: cannot open shared object" in check.detail


def test_an_installed_nvidia_pytriton_is_a_problem(
    choice: ServerChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site/nvidia_pytriton-0.7.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-pytriton\nVersion: 0.7.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    check = by_name(run_checks(choice, runtime_dir=tmp_path / "run"))["distribution"]
    assert check.status == "problem"
    assert "nvidia-pytriton 0.7.0" in check.detail
    assert "pip uninstall" in check.mend


def test_unusable_runtime_directories_are_problems(tmp_path: Path) -> None:
    long = machine_checks.check_runtime_dir(tmp_path / ("x" * 120))
    assert long.status == "problem"
    assert "too long for unix sockets" in long.detail
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o755)
    assert machine_checks.check_runtime_dir(public).status == "warning"
    public.chmod(0o700)
    assert machine_checks.check_runtime_dir(public).status == "ok"
    file = tmp_path / "file"
    file.touch()
    assert machine_checks.check_runtime_dir(file).status == "problem"


@pytest.mark.parametrize(("is_built", "status"), [(False, "warning"), (True, "ok")])
def test_small_shared_memory_matters_only_to_the_python_proxy(
    choice: ServerChoice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_built: bool,
    status: str,
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(compiled_proxy, "is_built", lambda cache: is_built)
    monkeypatch.setattr(machine_checks, "SHM_COMFORTABLE_BYTES", 1 << 60)
    checks = by_name(run_checks(choice, runtime_dir=tmp_path / "run"))
    assert checks["/dev/shm"].status == status


def test_gpus_are_listed_and_a_failing_driver_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_checks.check_gpus().status == "ok"
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, Some GPU, 1000 MiB, 550.1'\n")
    program.chmod(0o755)
    assert machine_checks.check_gpus() == Check("GPUs", "ok", "0, Some GPU, 1000 MiB, 550.1")
    program.write_text("#!/bin/sh\necho no driver; exit 9\n")
    assert machine_checks.check_gpus().status == "warning"
    program.write_text(f"#!{sys.executable}\nimport signal; signal.pause()\n")
    monkeypatch.setattr(machine_checks, "GPU_QUERY_TIMEOUT_S", 0.5)
    check = machine_checks.check_gpus()
    assert (check.status, check.detail) == ("warning", "nvidia-smi did not answer within 0.5 s")


def test_a_failing_check_is_a_problem_and_the_others_still_run(
    choice: ServerChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Check:
        raise RuntimeError("boom")

    monkeypatch.setattr(machine_checks, "check_memfd", broken)
    checks = by_name(diagnosis.run_checks(choice, runtime_dir=tmp_path / "run"))
    assert checks["memfd"].status == "problem"
    assert "RuntimeError: boom" in checks["memfd"].detail
    assert checks["pidfd"].status == "ok"
