"""Why we depend on what we depend on, and what it costs: writes the table of docs/reference/dependencies.md.

`python -m release.dependencies PYTHON ...`, where each PYTHON belongs to an environment with pytriton-daemon and
nothing else. What the first lacks is measured in the next: Python 3.11 has no use for tomli, for example.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Runs in that environment: prints the bytes of each distribution's files.
_SIZES = """
import json, sys
from importlib.metadata import distribution
def size(name):
    files = distribution(name).files or []
    return sum(one.locate().stat().st_size for one in files if one.locate().is_file())
print(json.dumps({name: size(name) for name in sys.argv[1:]}))
"""
_IMPORT = "import time; start = time.process_time(); __import__({module!r}); print(time.process_time() - start)"
#: An import is measured so often, in seconds of the processor; the best counts.
_ROUNDS = 5


@dataclass(frozen=True)
class Dependency:
    """One that we name ourselves, not one that others bring along."""

    name: str
    module: str
    needed_by: str  #: daemon, command line, worker, client; "all"
    why: str
    instead: str  #: the alternatives, and why not


DEPENDENCIES = (
    Dependency(
        "aiohttp",
        "aiohttp",
        "daemon, client",
        "the HTTP servers of the OpenAI frontend and the management server, and the frontend's client of the native frontend",
        "uvicorn and starlette, plus a client library: tritonclient[http] depends on aiohttp anyway",
    ),
    Dependency(
        "async-timeout",
        "async_timeout",
        "daemon (Python 3.9 and 3.10)",
        "time limits without an extra task; part of Python since 3.11",
        "`asyncio.wait_for`: keeps the body of a failed request alive until garbage collection; aiohttp "
        "depends on async-timeout anyway",
    ),
    Dependency(
        "cloudpickle",
        "cloudpickle",
        "worker, registering",
        "pickles what pickle cannot: lambdas, closures, code defined in notebooks",
        "pickle: supports neither lambdas nor notebooks; dill: equivalent",
    ),
    Dependency(
        "filelock",
        "filelock",
        "daemon, registering",
        "a lock, so that one process at a time fills the cache folder",
        "fcntl.flock: needs more code; virtualenv depends on filelock anyway",
    ),
    Dependency(
        "gevent",
        "gevent",
        "client (Python 3.9)",
        "only a version bound: tritonclient[http] would otherwise select a version without wheels for Python 3.9",
        "none, until support for Python 3.9 ends",
    ),
    Dependency(
        "grpclib",
        "grpclib",
        "daemon, with NVIDIA's frontend",
        "gRPC on the event loop, to load and unload models",
        "grpcio: starts threads, and aborts the daemon if it cannot",
    ),
    Dependency(
        "ml_dtypes",
        "ml_dtypes",
        "worker and client, for BF16",
        "numpy has no bfloat16",
        "raw 16-bit words, which the Python proxy uses if ml_dtypes is missing",
    ),
    Dependency(
        "msgspec",
        "msgspec",
        "all",
        "messages as typed structs, validated in C while they are decoded",
        "pydantic: validates in a second step; plain json: no validation",
    ),
    Dependency("numpy", "numpy", "worker, client", "tensors are numpy arrays", "none"),
    Dependency(
        "prometheus-client",
        "prometheus_client.core",
        "daemon",
        "reads and writes the text format of /metrics",
        "our own code: escaping is easy to get wrong",
    ),
    Dependency(
        "psutil",
        "psutil",
        "daemon",
        "finds a worker's child processes and measures their memory",
        "reading /proc ourselves",
    ),
    Dependency(
        "pyzmq",
        "zmq",
        "worker, registering",
        "the control socket: message framing, reconnection, CurveZMQ encryption",
        "plain sockets and TLS: more code; gRPC: a schema and generated code for private messages",
    ),
    Dependency(
        "rich",
        "rich.console",
        "command line",
        "tables and colors; typer and textual depend on it anyway",
        "none",
    ),
    Dependency(
        "structlog",
        "structlog",
        "daemon",
        "log records with fields, as JSON lines",
        "logging: no structured fields",
    ),
    Dependency(
        "textual",
        "textual.app",
        "command line, for `top`",
        "a live, interactive table in any terminal",
        "curses: more code",
    ),
    Dependency(
        "tomli",
        "tomli",
        "daemon (Python 3.9 and 3.10)",
        "reads the settings file; part of Python since 3.11",
        "none",
    ),
    Dependency(
        "tritonclient",
        "tritonclient.grpc",
        "client, registering",
        "HTTP and gRPC of the KServe protocol, and the schema of config.pbtxt",
        "our own clients: users' code uses tritonclient's types",
    ),
    Dependency(
        "typer",
        "typer",
        "command line",
        "derives commands, flags, help and completion from function signatures",
        "argparse: does not complete model names, and flags are declared twice",
    ),
    Dependency(
        "urllib3",
        "urllib3",
        "client",
        "connections of `ApiClient`",
        "http.client: no pool, no retries of stale connections; tritonclient[http] depends on urllib3 anyway",
    ),
    Dependency(
        "uvloop",
        "uvloop",
        "daemon, OpenAI frontend; workers of async streaming callables, if installed in their environment",
        "20 % less CPU time per token in the frontend, a third less in such a worker; both also run without it",
        "asyncio's own loop, which is used if uvloop is missing",
    ),
    Dependency(
        "virtualenv",
        "virtualenv",
        "daemon, registering",
        "environments for `requirements=` and for the Python proxy; works where venv lacks ensurepip",
        "venv: missing in Debian's Python",
    ),
)


def table(measured: Mapping[str, tuple[int, float]]) -> str:
    """Return the Markdown table: bytes of files and seconds of import for each measured name."""
    lines = [
        "| package | needed by | why | instead | MB | import, ms of CPU |",
        "|---|---|---|---|--:|--:|",
    ]
    for one in DEPENDENCIES:
        size, seconds = measured.get(one.name, (0, 0.0))
        costs = f"{size / 1e6:.1f} | {seconds * 1e3:.0f}" if size else "? | ?"
        lines.append(f"| {one.name} | {one.needed_by} | {one.why} | {one.instead} | {costs} |")
    return "\n".join(lines) + "\n"


def measure(python: Path) -> dict[str, tuple[int, float]]:
    """Return bytes and seconds of each dependency that is installed in an environment."""
    there = [one for one in DEPENDENCIES if _finds(python, one.module)]
    said = _said(python, "-c", _SIZES, *(one.name for one in there))
    sizes = json.loads(said)
    return {one.name: (sizes[one.name], _seconds(python, one.module)) for one in there}


def measure_all(pythons: Sequence[Path]) -> dict[str, tuple[int, float]]:
    """Return bytes and seconds of each dependency, from the first environment that has it."""
    measured: dict[str, tuple[int, float]] = {}
    for python in pythons:
        measured = {**measure(python), **measured}
    return measured


def _seconds(python: Path, module: str) -> float:
    code = _IMPORT.format(module=module)
    return min(float(_said(python, "-c", code)) for _ in range(_ROUNDS))


def _finds(python: Path, module: str) -> bool:
    code = f"import importlib.util as u; print(u.find_spec({module!r}) is not None)"
    return _said(python, "-c", code).strip() == "True"


def _said(python: Path, *arguments: str) -> str:
    command = [str(python), "-I", *arguments]  # of that environment alone
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    print(table(measure_all([Path(one) for one in sys.argv[1:]])), end="")
