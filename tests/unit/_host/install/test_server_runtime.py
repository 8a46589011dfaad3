"""Which tritonserver is used, how it is configured for the proxy, and whether that really works."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytriton._host.install import interpreters, server_runtime
from pytriton._host.install.compiled_frontend import NativeProgram
from pytriton._host.install.proxy_env import ProxyEnvironment
from pytriton._host.install.server_runtime import (
    PythonBackend,
    ServerChoice,
    ServerRuntime,
    ServerRuntimeError,
    find_or_install_server,
    find_server,
    lay_out_backends,
    lay_out_python,
    make_python_backend,
    python_link,
    server_environment,
)
from pytriton._host.install.server_tree import ServerTree, read_tree


def make_server(root: Path) -> Path:
    """Create the files of a tritonserver as in NVIDIA's containers."""
    python = root / "backends" / "python"
    for folder in (root / "bin", root / "lib", python, root / "caches" / "local"):
        folder.mkdir(parents=True)
    (root / "backends" / "onnxruntime").mkdir()
    (root / "bin" / "tritonserver").write_text("#!/bin/sh\n")
    (root / "bin" / "tritonserver").chmod(0o755)
    (python / "libtriton_python.so").touch()
    (python / "triton_python_backend_utils.py").touch()
    (python / "triton_python_backend_stub").write_bytes(b"\0libc.so\0libpython3.10.so.1.0\0")
    (root / "TRITON_VERSION").write_text("2.60.0\n")
    return root


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a tritonserver except where a test puts one."""
    monkeypatch.delenv("PYTRITON_DAEMON_TRITONSERVER", raising=False)
    monkeypatch.setattr(server_runtime, "CONTAINER_ROOT", tmp_path / "opt/tritonserver")
    folders = os.environ["PATH"].split(":")
    kept = [folder for folder in folders if not (Path(folder) / "tritonserver").exists()]
    monkeypatch.setenv("PATH", ":".join(kept))


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = ServerChoice(cache_dir=tmp_path / "cache")
    assert find_server(choice, print) is None

    def found(choice: ServerChoice) -> tuple[Path, str]:
        result = find_server(choice, print)
        assert result is not None
        return result[0].root, result[1]

    path = make_server(tmp_path / "path")
    monkeypatch.setenv("PATH", f"{path / 'bin'}:{os.environ['PATH']}")
    assert found(choice) == (path, "path")
    container = make_server(tmp_path / "opt/tritonserver")
    assert found(choice) == (container, "container")
    variable = make_server(tmp_path / "variable")
    monkeypatch.setenv("PYTRITON_DAEMON_TRITONSERVER", str(variable))
    assert found(choice) == (variable, "environment")
    setting = make_server(tmp_path / "setting")
    as_folder = ServerChoice(tritonserver=setting, cache_dir=choice.cache_dir)
    as_binary = ServerChoice(tritonserver=setting / "bin/tritonserver", cache_dir=choice.cache_dir)
    assert found(as_folder) == found(as_binary) == (setting, "setting")


def test_a_servers_files_are_found(tmp_path: Path) -> None:
    root = make_server(tmp_path / "server")
    result = find_server(ServerChoice(tritonserver=root), print)
    assert result is not None
    tree = result[0]
    assert tree.backends == root / "backends"
    assert tree.caches == root / "caches"
    assert tree.libraries == (root / "lib",)
    assert tree.python_backends == (((3, 10), root / "backends/python"),)
    assert tree.python_versions == [(3, 10)]
    assert tree.version == "2.60.0"


@pytest.mark.parametrize(
    ("missing", "text"), [("", "does not exist"), ("bin/tritonserver", "has no bin/tritonserver")]
)
def test_a_setting_that_names_no_server_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, text: str
) -> None:
    root = tmp_path / "server"
    if missing:
        (make_server(root) / missing).unlink()
    choice = ServerChoice(tritonserver=root, cache_dir=tmp_path / "cache")
    with pytest.raises(ServerRuntimeError, match=f"tritonserver is set to {root}, but .*{text}"):
        find_or_install_server(choice, print)
    monkeypatch.setenv("PYTRITON_DAEMON_TRITONSERVER", str(root))
    with pytest.raises(ServerRuntimeError, match=f"DAEMON_TRITONSERVER is set to .*{text}"):
        find_or_install_server(ServerChoice(cache_dir=tmp_path / "cache"), print)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("backends/python/libtriton_python.so", "has no Python backend: "),
        ("backends/python/triton_python_backend_stub", "usable triton_python_backend_stub"),
    ],
)
def test_a_server_without_a_python_backend_is_used_if_none_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, text: str
) -> None:
    monkeypatch.setattr(server_runtime, "build", lambda *_: tmp_path / "native")
    monkeypatch.setattr(server_runtime, "misfit", lambda *_: None)
    root = make_server(tmp_path / "server")
    (root / missing).unlink()
    choice = ServerChoice(tritonserver=root, cache_dir=tmp_path / "cache")
    assert find_or_install_server(choice, print).tree.root == root
    with pytest.raises(ServerRuntimeError, match=f"{text}.*the Python proxy and models of"):
        find_or_install_server(replace(choice, proxy="python"), print)


def test_the_library_alone_is_enough_for_the_native_frontend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, in a slim container without NVIDIA's executable and backends."""
    made = NativeProgram(tmp_path / "frontend", tmp_path / "core", {})
    monkeypatch.setattr(server_runtime, "build", lambda *_: tmp_path / "native")
    monkeypatch.setattr(server_runtime, "misfit", lambda *_: None)
    monkeypatch.setattr(server_runtime, "make_frontend", lambda *_: made)
    library = tmp_path / "server" / "lib" / "libtritonserver.so"
    library.parent.mkdir(parents=True)
    library.touch()
    choice = ServerChoice(tritonserver=tmp_path / "server", cache_dir=tmp_path / "cache")
    runtime = find_or_install_server(choice, print)
    assert (runtime.frontend, runtime.tree.program) == (made, library)
    assert runtime.tree.libraries == (library.parent,)
    backends = lay_out_backends(runtime, tmp_path / "run")
    assert sorted(one.name for one in backends.iterdir()) == ["pytriton", "pytriton_native"]
    with pytest.raises(
        ServerRuntimeError, match=r"has no bin/tritonserver, which the setting frontend = triton"
    ):
        find_or_install_server(replace(choice, frontend="triton"), print)

    def unusable(*_: object) -> NativeProgram:
        raise ServerRuntimeError("no C compiler")

    monkeypatch.setattr(server_runtime, "make_frontend", unusable)
    with pytest.raises(ServerRuntimeError, match=r"^no C compiler$"):  # there is no alternative
        find_or_install_server(choice, print)


_HELP = """usage: tritonserver
  --http-thread-count <integer>
\tNumber of threads; see --nowhere.
  --quantum-tunnels <integer>
  --allow-client-shm <boolean>
"""


@pytest.mark.parametrize(
    ("choice", "help_text", "failure"),
    [
        ({"options": ("quantum-tunnels",)}, _HELP, ""),
        ({"options": ("quantum-tunnels", "nowhere")}, _HELP, "has no option 'nowhere'"),
        ({"options": ("http-threads-count",)}, _HELP, "did you mean http-thread-count"),
        ({"allow_client_shm": False}, _HELP, ""),
        ({"allow_client_shm": False}, "usage:", "has no option for that: use the native frontend"),
    ],
)
def test_nvidias_executable_is_queried_for_its_options(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choice: dict[str, Any],
    help_text: str,
    failure: str,
) -> None:
    monkeypatch.setattr(server_runtime, "build", lambda *_: tmp_path / "native")
    monkeypatch.setattr(server_runtime, "misfit", lambda *_: None)
    root = make_server(tmp_path / "server")
    script = root / "bin" / "tritonserver"
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{help_text}\nEND\nexit 1\n")
    wanted = ServerChoice(tritonserver=root, cache_dir=tmp_path / "c", frontend="triton", **choice)
    if failure:
        with pytest.raises(ServerRuntimeError, match=failure):
            find_or_install_server(wanted, print)
        return
    options = find_or_install_server(wanted, print).options
    assert options == {"http-thread-count", "quantum-tunnels", "allow-client-shm"}


def test_an_unusable_server_on_path_is_skipped_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_server(tmp_path / "server")
    (root / "backends/python/libtriton_python.so").unlink()
    monkeypatch.setenv("PATH", str(root / "bin"))
    said: list[str] = []
    assert find_server(ServerChoice(cache_dir=tmp_path / "cache"), said.append) is None
    assert len(said) == 1
    assert said[0].startswith(f"skipping the tritonserver at {root}")


def test_inaccessible_folders_are_named(tmp_path: Path) -> None:
    """Runs as an unprivileged user, because root may enter all folders."""
    make_server(tmp_path / "closed" / "server")
    (tmp_path / "closed").chmod(0)
    code = """
import os, sys
from pathlib import Path
from pytriton._host.install.cache import ServerRuntimeError, publish
from pytriton._host.install.server_tree import read_tree
closed = Path(sys.argv[1])
if os.geteuid() == 0:
    os.seteuid(65534)
print(read_tree(closed / "server").flaw)
try:
    publish(closed / "cache" / "x", print, lambda target: (target / "marker").is_file(), print)
except ServerRuntimeError as error:
    print(error)
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "closed")],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        (tmp_path / "closed").chmod(0o700)
    lines = done.stdout.splitlines()
    assert "closed/server cannot be read (Permission denied)" in lines[0]
    assert lines[1].startswith("this user has no access to ")


@pytest.fixture
def runtime(tmp_path: Path) -> ServerRuntime:
    tree = read_tree(make_server(tmp_path / "server"))
    assert isinstance(tree, ServerTree)
    return ServerRuntime(tree, ServerChoice(), native=None, python=None)


@pytest.fixture
def python(runtime: ServerRuntime, tmp_path: Path) -> PythonBackend:
    folder = dict(runtime.tree.python_backends)[3, 10]
    return PythonBackend(folder, ProxyEnvironment(tmp_path / "env"))


def test_environment_of_tritonserver(runtime: ServerRuntime, tmp_path: Path) -> None:
    python = tmp_path / "env"
    base = {"PATH": "/usr/bin", "PYTHONPATH": "/mine", "VIRTUAL_ENV": "/mine", "HOME": "/h"}
    environ = server_environment(runtime, base, python)
    assert environ == {
        "PATH": f"{python}/bin:/usr/bin",
        "LD_LIBRARY_PATH": f"{runtime.tree.libraries[0]}:{python}/libpython",
        "HOME": "/h",
    }
    longer = server_environment(runtime, {"LD_LIBRARY_PATH": "/cuda"}, python)
    assert longer["LD_LIBRARY_PATH"].endswith("/libpython:/cuda")


def test_backend_folder(runtime: ServerRuntime, tmp_path: Path) -> None:
    (tmp_path / "run/backends/left-over").mkdir(parents=True)  # of a previous daemon
    backends = lay_out_backends(runtime, tmp_path / "run")
    assert backends == tmp_path / "run/backends"
    # Without the Python of its stub, the python backend hangs in the first model, and all loads with it.
    assert {path.name for path in backends.iterdir()} == {"pytriton", "onnxruntime"}
    proxy = backends / "pytriton/pytriton"
    assert (proxy / "__init__.py").read_text() == ""
    assert {path.name for path in proxy.iterdir()} == {"__init__.py", "_protocol", "proxy_backend"}
    assert not any(path.is_symlink() for path in (backends / "pytriton").rglob("*"))
    assert lay_out_backends(runtime, tmp_path / "run") == backends


def test_the_python_backend_is_laid_out_if_available(
    runtime: ServerRuntime, python: PythonBackend, tmp_path: Path
) -> None:
    backends = lay_out_backends(runtime, tmp_path / "run")
    assert not python_link(backends).is_symlink()
    for _ in range(2):
        lay_out_python(python, backends)
        assert (backends / "python").readlink() == python.folder
        assert python_link(backends).readlink() == tmp_path / "env"
    lay_out_backends(replace(runtime, python=python), tmp_path / "run")
    assert python_link(backends).readlink() == tmp_path / "env"
    lay_out_backends(runtime, tmp_path / "run")  # by a later daemon
    assert not python_link(backends).is_symlink()


def test_the_compiled_proxy_needs_no_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, on a machine that only has Python 3.13."""
    monkeypatch.setattr(server_runtime, "build", lambda *_: tmp_path / "native")
    monkeypatch.setattr(server_runtime, "build_interposer", lambda *_: tmp_path / "interposer.so")
    monkeypatch.setattr(server_runtime, "misfit", lambda *_: None)
    monkeypatch.setattr(interpreters, "_all_candidates", lambda _: iter(()))
    choice = ServerChoice(tritonserver=make_server(tmp_path / "server"), cache_dir=tmp_path / "c")
    runtime = find_or_install_server(choice, print)
    assert (runtime.native, runtime.python) == (tmp_path / "native", None)
    assert runtime.interposer == tmp_path / "interposer.so"
    assert not (tmp_path / "c").exists()
    for needs in (
        replace(choice, proxy="python"),
        replace(choice, python_backend=True),
        replace(choice, proxy_python=tmp_path / "python"),
    ):
        with pytest.raises(ServerRuntimeError, match=r"no Python for the proxy|proxy_python"):
            find_or_install_server(needs, print)
    with pytest.raises(ServerRuntimeError, match="no Python for the proxy was found"):
        make_python_backend(runtime, print)


def test_without_any_proxy_both_fixes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: object) -> Path:
        raise ServerRuntimeError("no C compiler")

    monkeypatch.setattr(server_runtime, "build", no_compiler)
    monkeypatch.setattr(interpreters, "_all_candidates", lambda _: iter(()))
    choice = ServerChoice(tritonserver=make_server(tmp_path / "server"), cache_dir=tmp_path / "c")
    said: list[str] = []
    with pytest.raises(ServerRuntimeError, match=r"(?s)no Python for .* apt .*no C compiler"):
        find_or_install_server(choice, said.append)
    assert said[0] == "the Python proxy serves all models, which is slower: no C compiler"
    with pytest.raises(ServerRuntimeError, match=r"^no C compiler$"):
        find_or_install_server(replace(choice, proxy="native"), print)


def test_nvidias_frontend_is_used_if_the_native_one_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_runtime, "build", lambda *_: tmp_path / "native")
    monkeypatch.setattr(server_runtime, "misfit", lambda *_: None)
    choice = ServerChoice(tritonserver=make_server(tmp_path / "server"), cache_dir=tmp_path / "c")
    said: list[str] = []
    assert find_or_install_server(choice, said.append).frontend is None
    assert [one for one in said if "using NVIDIA's frontend: " in one]
    said.clear()
    assert find_or_install_server(replace(choice, frontend="triton"), said.append).frontend is None
    assert said == []
    with pytest.raises(ServerRuntimeError, match=r"no libtritonserver\.so"):
        find_or_install_server(replace(choice, frontend="native"), print)


def test_the_copied_modules_need_nothing_else_of_this_package(
    runtime: ServerRuntime, tmp_path: Path
) -> None:
    """Import them as the stub does: isolated, from the backend's folder alone."""
    folder = lay_out_backends(runtime, tmp_path / "run") / "pytriton"
    names = [
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in sorted((folder / "pytriton/_protocol").glob("*.py"))
    ]
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import {', '.join(names)}\n"
    code += f"assert all(sys.modules[n].__file__.startswith({str(folder)!r}) for n in {names!r})"
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd="/")
