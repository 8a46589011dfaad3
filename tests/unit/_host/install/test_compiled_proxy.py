"""The compiled proxy is built once, included in wheels, and skipped where it cannot be built."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pytriton._host.doctor.diagnosis import _check_proxy
from pytriton._host.install import compiled_proxy
from pytriton._host.install.cache import ServerRuntimeError, cache_dir
from pytriton._host.install.proxy_compiler import (
    FLAGS,
    PROXY,
    BuildError,
    compile_program,
    compiler,
)
from pytriton._host.install.server_runtime import ServerChoice, find_or_install_server
from pytriton._host.install.server_tree import ServerTree, read_tree


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile in no time."""
    folder = tmp_path / "backend"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "one.h").write_text("int one(void);\n")
    (folder / "room" / "one.c").write_text('#include "room/one.h"\nint one(void) { return 1; }\n')
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "two.h").write_text("int two(void);\n")
    monkeypatch.setattr(compiled_proxy, "source_root", lambda: tmp_path)
    return folder


def test_it_is_built_once_and_rebuilt_when_the_sources_change(small: Path, tmp_path: Path) -> None:
    said: list[str] = []
    cache = tmp_path / "cache"
    assert not compiled_proxy.is_built(cache)
    first = compiled_proxy.build(cache, said.append)
    assert (first / PROXY.file).is_file()
    assert compiled_proxy.is_built(cache)
    assert compiled_proxy.build(cache, said.append) == first
    assert said == ["building the compiled proxy"]
    (small / "room" / "one.h").write_text("int one(void); /* changed */\n")
    second = compiled_proxy.build(cache, said.append)
    assert second != first
    (tmp_path / "common" / "two.h").write_text("int two(void); /* changed */\n")
    assert compiled_proxy.build(cache, said.append) not in {first, second}


def test_moving_a_source_changes_the_key(small: Path, tmp_path: Path) -> None:
    first = compiled_proxy.build(tmp_path / "cache", lambda _: None)
    (small / "other").mkdir()
    (small / "room" / "one.c").rename(small / "other" / "one.c")
    assert compiled_proxy.build(tmp_path / "cache", lambda _: None) != first


def test_a_library_included_in_a_wheel_is_used(small: Path, tmp_path: Path) -> None:
    compile_program(PROXY, tmp_path, small / PROXY.file)
    assert compiled_proxy.build(tmp_path / "cache", pytest.fail) == small


def test_a_library_for_another_machine_is_rebuilt(small: Path, tmp_path: Path) -> None:
    (small / PROXY.file).write_bytes(b"\x7fELF of something else")
    assert compiled_proxy.build(tmp_path / "cache", lambda _: None) != small


def test_a_missing_compiler_is_reported(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ServerRuntimeError, match="no C compiler is on PATH"):
        compiled_proxy.build(tmp_path / "cache", lambda _: None)
    assert not list((tmp_path / "cache").rglob(PROXY.file))
    checked = _check_proxy(ServerChoice(cache_dir=tmp_path / "cache"))
    assert (checked.status, checked.mend) == ("warning", "install gcc or clang for the first start")


def test_compiler_output_is_reported(small: Path, tmp_path: Path) -> None:
    (small / "two.c").write_text("this is no C\n")
    with pytest.raises(BuildError, match=r"two\.c"):
        compile_program(PROXY, tmp_path, tmp_path / PROXY.file)


def test_a_tritonserver_that_is_too_old_is_reported(tmp_path: Path) -> None:
    """It lacks a function that the proxy calls, has all of them and an older API, or cannot be loaded at all."""
    native = compiled_proxy.build(cache_dir(), lambda _: None)
    (tmp_path / "lib").mkdir()
    empty = ServerTree(None, tmp_path / "backends", None, (tmp_path / "lib",), (), None)
    lacks = f"{tmp_path}/lib has no libtritonserver.so"
    assert compiled_proxy.misfit(native, empty) == lacks
    command = compiler()
    assert command is not None
    flags = [flag for flag in FLAGS if flag != "-fvisibility=hidden"]
    for functions, expected in (
        (["void TRITONSERVER_ErrorNew(void) {}"], "undefined symbol: TRITON"),
        (_old_core(native / PROXY.file), "tritonserver has version 1.7 of the backend API, but"),
        ([_library_that("abort()")], "was killed by signal 6 (Aborted)"),
        ([_library_that("_exit(3)")], "exited with code 3"),
    ):
        source = tmp_path / "old.c"
        source.write_text("\n".join(functions))
        subprocess.run(
            [command, *flags, "-o", tmp_path / "lib" / "libtritonserver.so", source], check=True
        )
        tree = read_tree(tmp_path)
        assert isinstance(tree, ServerTree)
        assert expected in (compiled_proxy.misfit(native, tree) or "")


def test_a_tritonserver_that_cannot_be_loaded_in_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = compiled_proxy.build(cache_dir(), lambda _: None)
    (tmp_path / "lib").mkdir()
    (tmp_path / "hangs.c").write_text(_library_that("pause()"))
    command = compiler()
    assert command is not None
    core = tmp_path / "lib" / "libtritonserver.so"
    subprocess.run([command, *FLAGS, "-o", core, tmp_path / "hangs.c"], check=True)
    tree = read_tree(tmp_path)
    assert isinstance(tree, ServerTree)
    monkeypatch.setattr(compiled_proxy, "_LOAD_S", 0.5)
    late = f"{core} and the proxy could not be loaded within 0.5 s"
    assert compiled_proxy.misfit(native, tree) == late


def _library_that(call: str) -> str:
    """Return a library that calls a function when it is loaded."""
    return (
        "#include <stdlib.h>\n#include <unistd.h>\n"
        f"__attribute__((constructor)) static void load(void) {{ {call}; }}"
    )


def _old_core(proxy: Path) -> list[str]:
    """Return functions of version 1.7 of the API, with all names that the proxy needs."""
    own = {
        "TRITONBACKEND_ApiVersion": "(unsigned *major, unsigned *minor) { *major = 1; *minor = 7; return 0; }",
        "TRITONSERVER_ErrorNew": "(int code, const char *text) { (void)code; return __builtin_strdup(text); }",
        "TRITONSERVER_ErrorMessage": "(void *error) { return error; }",
    }
    needed = set(re.findall(rb"\x00(TRITON(?:BACKEND|SERVER)_\w+)", proxy.read_bytes()))
    provided = {"Initialize", "GetBackendAttribute"}
    names = {name.decode() for name in needed if not name.decode().endswith(tuple(provided))}
    return [f"void *{name}{own.get(name, '(void) { return 0; }')}" for name in names | set(own)]


def test_the_downloaded_tritonserver_accepts_it() -> None:
    runtime = find_or_install_server(ServerChoice(proxy="native"), print)
    assert runtime.native is not None
    assert compiled_proxy.misfit(runtime.native, runtime.tree) is None
