"""Import rules: the processes share only `pytriton._protocol`."""

from __future__ import annotations

import ast
import functools
import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = ("pytriton", "dispatcher", "proxy_backend", "worker")
WIRE = {"msgspec", "numpy", "zmq"}  # all that the proxy's environment holds
STUB_ONLY = "triton_python_backend_utils"
#: Used if installed; the proxy's environment does not have it.
OPTIONAL = {"pytriton._protocol.numpy_types": {"ml_dtypes"}}

#: Part of ours -> the parts of ours that it may import, apart from itself.
MAY_IMPORT = {
    "pytriton._protocol": set(),
    "pytriton.proxy_backend": {"pytriton._protocol"},
    "pytriton._host": {
        "pytriton._clash",
        "pytriton._protocol",
        "pytriton.exceptions",
        "pytriton.formats",
        "pytriton.openai",
    },
    "pytriton.dispatcher": {
        "pytriton._host",
        "pytriton._clash",
        "pytriton.autoscale",
        "pytriton.exceptions",
        "pytriton.formats",
        "pytriton._protocol",
        "pytriton.model_config",
        "pytriton.openai",
    },
    "pytriton.worker": {
        "pytriton._callables",
        "pytriton.buffers",
        "pytriton.calls",
        "pytriton.decorators",
        "pytriton.exceptions",
        "pytriton._protocol",
        "pytriton.model_config",
        "pytriton.pb_utils",
        "pytriton.proxy.results",
        "pytriton.proxy.telemetry",
        "pytriton.proxy.types",
        "pytriton.request_ids",
    },
}
#: Public, but uses a process's package: isolation="thread" is a worker in the caller's own process.
HOSTS = {"pytriton._register.thread_host": "pytriton.worker"}
PROCESSES = {"pytriton.dispatcher", "pytriton.proxy_backend", "pytriton.worker"}


def modules() -> dict[str, Path]:
    """Return every module of ours by its full name."""
    found = {}
    for top in TOPS:
        for folder, _, names in os.walk(ROOT / top):  # does not follow the symlinks
            for path in (Path(folder, name) for name in names if name.endswith(".py")):
                parts = path.relative_to(ROOT).with_suffix("").parts
                parts = parts if top == "pytriton" else ("pytriton", *parts)
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Iterate over all statements; `ast.walk` takes five times as long because of expressions."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(statement, part, ()))


@functools.cache
def imports_of(name: str, path: Path) -> set[str]:
    """Return the full names of a module's imports anywhere in its file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    gc.disable()  # hypothesis' callback in a collection makes ast.parse of 3.11 fail ("depth mismatch", seen)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            # `from package import module` imports the module, `from module import name` does not.
            found.update(
                full if (full := f"{base}.{alias.name}") in MODULES else base
                for alias in node.names
            )
    return found


MODULES = modules()


def part_of(name: str) -> str | None:
    return next((part for part in MAY_IMPORT if within(name, part)), None)


IN_PROXY = sorted(
    name for name in MODULES if part_of(name) in ("pytriton._protocol", "pytriton.proxy_backend")
)


def wrong_imports(name: str) -> list[str]:
    """Return a module's imports of ours that its part may not import."""
    ours = {one for one in imports_of(name, MODULES[name]) if within(one, "pytriton")}
    part = part_of(name)
    if within(name, "pytriton._cli"):  # the launcher: it runs a daemon in its own process
        return []
    if part is None:  # public: all but the processes, which it starts and talks to
        processes = PROCESSES - {HOSTS.get(name)}
        return sorted(one for one in ours if any(within(one, process) for process in processes))
    allowed = MAY_IMPORT[part] | {part}
    return sorted(one for one in ours if not any(within(one, package) for package in allowed))


def test_a_module_imports_only_what_its_part_may() -> None:
    assert {name: wrong for name in MODULES if (wrong := wrong_imports(name))} == {}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="Python 3.9 cannot list its own modules")
def test_the_proxy_imports_only_its_small_environment() -> None:
    if sys.version_info >= (3, 10):
        small = {*sys.stdlib_module_names, *WIRE, "pytriton", STUB_ONLY}  # novm
        for name in IN_PROXY:
            tops = {one.partition(".")[0] for one in imports_of(name, MODULES[name])}
            assert tops <= small | OPTIONAL.get(name, set()), name


@pytest.mark.programs
def test_protocol_and_proxy_work_beside_an_empty_package_file(tmp_path: Path) -> None:
    """As in tritonserver: an empty pytriton/__init__.py beside the two, and no optional packages."""
    package = tmp_path / "pytriton"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_protocol").symlink_to(ROOT / "pytriton" / "_protocol")
    (package / "proxy_backend").symlink_to(ROOT / "proxy_backend")
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(set().union(*OPTIONAL.values()))!r}))\n"
        "import pytriton\n"
        f"assert pytriton.__file__.startswith({str(tmp_path)!r}), pytriton.__file__\n"
        f"for name in {IN_PROXY!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        f"        if error.name != {STUB_ONLY!r}:\n"
        "            raise\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.programs
def test_import_linter_accepts_all_contracts() -> None:
    """It also follows chains over several modules, which the tests above do not."""
    pytest.importorskip("importlinter", reason="pip install import-linter")
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(command), "--no-cache"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
