"""Creates a virtual environment for each other system, once, in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE_VARIABLE = "PYTRITON_BENCH_CACHE"
_STAMP = "benchmark-requirements.txt"


class NotInstalled(Exception):
    """A system could not be installed. The text is the end of pip's output."""


def cache_folder() -> Path:
    """Return $PYTRITON_BENCH_CACHE, or pytriton-daemon/bench in the user's cache folder."""
    explicit = os.environ.get(CACHE_VARIABLE)
    if explicit:
        return Path(explicit).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base).absolute() / "pytriton-daemon" / "bench"


def ensure(name: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of an environment with `requirements`. Create it if it does not exist.

    Raises:
        NotInstalled: virtualenv or pip failed.
    """
    key = hashlib.sha256("\n".join([sys.executable, *requirements]).encode()).hexdigest()[:8]
    version = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    root = cache_folder() / f"{name}-{version}-{key}"
    python = root / "bin" / "python"
    if (root / _STAMP).is_file() and python.exists():
        return python
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    print(f"[bench] installing {name}: {' '.join(requirements)}", flush=True)
    _run(name, [sys.executable, "-m", "virtualenv", "--quiet", str(root)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(name, [*pip, *requirements])
    (root / _STAMP).write_text("\n".join(requirements))
    return python


def versions(python: Path, distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of distributions in an environment."""
    code = (
        "import importlib.metadata as m, json, sys; "
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [str(python), "-I", "-c", code, *distributions], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(f"{name}: {' / '.join(said[-3:]) or f'exit code {done.returncode}'}")
