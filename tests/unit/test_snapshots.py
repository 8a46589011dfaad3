"""Snapshots of what users depend on: changing one is a decision that its commit explains.

`PYTRITON_WRITE_SNAPSHOTS=1 scripts/test --no-lint tests/unit/test_snapshots.py` updates tests/unit/snapshots.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
from documentation.python_pages import PAGES
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._cli.app import app
from pytriton._host.settings.declarations import DaemonConfig, options
from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind
from pytriton._protocol.exit_codes import ExitCode
from pytriton.dispatcher.telemetry.events.kinds import KINDS
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES

FOLDER = Path(__file__).parent / "snapshots"
WRITES = os.environ.get("PYTRITON_WRITE_SNAPSHOTS") == "1"


def public_api() -> Iterator[str]:
    """Every public object of the reference, with its signature."""
    import pytriton

    yield from (f"pytriton.{name}" for name in sorted(pytriton.__all__))
    for page in PAGES.values():
        for path in page.objects:
            yield from _described(path, _resolve(path))


def _resolve(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        return getattr(_resolve(parent), name)


def _described(path: str, found: Any) -> Iterator[str]:
    if inspect.ismodule(found):
        for name, value in sorted(vars(found).items()):
            own = getattr(value, "__module__", "").startswith(found.__name__)
            if not name.startswith("_") and own:
                yield from _described(f"{path}.{name}", value)
    elif inspect.isclass(found):
        signature = "" if issubclass(found, enum.Enum) else _signature(found)
        yield f"class {path}({', '.join(base.__name__ for base in found.__bases__)}){signature}"
        for name, value in sorted(vars(found).items()):
            if name.startswith("_"):
                continue
            if isinstance(value, property):
                yield f"  {name}: property"
            elif isinstance(value, (classmethod, staticmethod)):
                yield f"  {type(value).__name__} {name}{_signature(value.__func__)}"
            elif inspect.isfunction(value):
                yield f"  {name}{_signature(value)}"
            elif isinstance(value, enum.Enum):
                yield f"  {name} = {value.value!r}"
    elif callable(found):
        yield f"{path}{_signature(found)}"


def _signature(found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except (TypeError, ValueError):
        return "(...)"
    return re.sub(r"<module '([\w.]+)'[^>]*>", r"<module \1>", re.sub(r" at 0x[0-9a-f]+", "", text))


def command_line() -> Iterator[str]:
    """Every command, with its arguments and options."""

    def walk(path: str, command: Any) -> Iterator[str]:
        yield path
        for parameter in command.params:
            names = ", ".join(sorted([*parameter.opts, *parameter.secondary_opts]))
            yield f"  {names}{' (required)' if parameter.required else ''}"
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            yield from walk(f"{path} {name}", inner)

    yield from walk("pytriton-daemon", typer.main.get_command(app))


def settings() -> Iterator[str]:
    """Every setting: name, type, default."""
    for one in msgspec.structs.fields(DaemonConfig):
        if one.name not in options():
            continue  # a fixed value
        default = "required" if one.required else repr(one.default)
        kind = str(one.type).partition("[")[2] if "Annotated" in str(one.type) else str(one.type)
        yield f"{one.name}: {kind.partition(', Option')[0].replace('typing.', '')} = {default}"


def metrics() -> Iterator[str]:
    """Every metric of the daemon: name, kind, labels."""
    for one in FAMILIES:
        yield f"{one.full_name} {one.kind} {{{', '.join(one.labels)}}}"


def events() -> Iterator[str]:
    """Every kind of event: name, level, numbers, codes."""
    for kind in KINDS.values():
        codes = f" [{', '.join(kind.codes)}]" if kind.codes else ""
        yield f"{kind.name} {kind.level} {{{', '.join(kind.numbers)}}}{codes}"


def codes() -> Iterator[str]:
    """Exit codes, and kinds of errors."""
    yield from (f"exit {one.value}: {one.name}" for one in ExitCode)
    yield from (f"error {one.value}" for one in ErrorKind)


SNAPSHOTS: dict[str, Callable[[], Iterator[str]]] = {
    "public_api": public_api,
    "command_line": command_line,
    "settings": settings,
    "metrics": metrics,
    "events": events,
    "codes": codes,
}


def compare(name: str, lines: list[str]) -> None:
    """Compare lines with a snapshot, or write it."""
    file = FOLDER / f"{name}.txt"
    if WRITES:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == file.read_text(encoding="utf-8").splitlines()


#: Other versions of Python spell annotations differently.
ON_PYTHON_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="written by Python 3.11"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=ON_PYTHON_3_11 if name in ("public_api", "settings") else ())
        for name in SNAPSHOTS
    ],
)
def test_public_behaviour_matches_the_snapshots(name: str) -> None:
    lines = list(SNAPSHOTS[name]())
    assert len(lines) > 10
    compare(name, lines)


def test_the_layout_of_the_state_directory_is_unchanged(tmp_path: Path) -> None:
    """Later versions must find what earlier ones stored."""
    sim = SimulatedDaemon(tmp_path)
    sim.advance(2.0)
    sim.served(sim.client.register("m", b"old"))
    sim.served(sim.client.register("m", b"new", replace=True))
    sim.served(sim.client.register("n", lazy=True))
    lines = []
    for path in sorted(sim.state.rglob("*")):
        head = path.read_bytes()[:24].decode(errors="replace") if path.is_file() else ""
        lines.append(
            f"{path.relative_to(sim.state)} {path.stat().st_mode & 0o777:o} {head}".rstrip()
        )
    sim.close()
    lines += [one.encode_name for one in msgspec.structs.fields(messages.ModelSpec)]
    compare("state_directory", lines)
