"""Facts about this machine, for diagnosing problems. Gathering them does not require root."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from pytriton._host.bounded_run import run_bounded

_GIB = 1 << 30
#: Timeout of programs that are run for their output, in seconds.
_PROGRAM_S = 60.0
#: Environment variables whose values are shown, except for passwords in URLs.
_SHOWN = re.compile(
    r"^(CUDA_|NVIDIA_(?!API)|OMP_|MKL_|PYTHON|PYTRITON_|LD_LIBRARY_PATH$|PATH$|HOME$|LANG$|LC_|TMPDIR$"
    r"|VIRTUAL_ENV|CONDA_|XDG_|http_proxy$|https_proxy$|no_proxy$|HTTP_PROXY$|HTTPS_PROXY$|NO_PROXY$)"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)
_PASSWORD = re.compile(r"(://)[^/@\s]+@")


def facts() -> Iterator[tuple[str, str]]:
    """Yield (heading, text) pairs with facts. If the facts are not available, the text says why."""
    sections: list[tuple[str, Callable[[], str]]] = [
        ("pytriton", _pytriton),
        ("system", _system),
        ("processor and memory", _resources),
        ("limits", _limits),
        ("disks", _disks),
        ("control groups", _cgroups),
        ("GPUs", _gpus),
        ("processes", _processes),
        ("environment variables", _variables),
        ("Python packages", _packages),
        ("pytriton-daemon doctor", _doctor),
    ]
    for heading, describe in sections:
        yield heading, _describe_section(describe)


def _describe_section(describe: Callable[[], str]) -> str:
    try:
        return describe().rstrip()
    except Exception as error:  # one missing fact must not hide the others
        return f"not available: {type(error).__name__}: {error}"


def _pytriton() -> str:
    import pytriton

    return (
        f"pytriton-daemon {pytriton.__version__} in {Path(pytriton.__file__).parent}\n"
        f"Python {sys.version} ({sys.executable})"
    )


def _system() -> str:
    release = Path("/etc/os-release")
    lines = release.read_text(errors="replace").splitlines() if release.exists() else []
    named = next((line for line in lines if line.startswith("PRETTY_NAME=")), "PRETTY_NAME=?")
    container = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    return (
        f"{platform.platform()} {platform.machine()}\n"
        f"{named.partition('=')[2].strip(chr(34))}, {' '.join(platform.libc_ver())}\n"
        f"in a container: {'yes' if container else 'not detected'}\n"
        f"user id {os.geteuid()}"
    )


def _resources() -> str:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    usable = len(os.sched_getaffinity(0))
    return (
        f"{os.cpu_count()} processors, {usable} of them usable by this process, load {os.getloadavg()}\n"
        f"memory: {memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB available\n"
        f"swap: {swap.free / _GIB:.1f} of {swap.total / _GIB:.1f} GiB free"
    )


def _limits() -> str:
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    lines = []
    for name in names:
        soft, hard = resource.getrlimit(getattr(resource, name))
        lines.append(f"{name[7:].lower()}: {_limit(soft)} (hard: {_limit(hard)})")
    return "\n".join(lines)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _disks() -> str:
    lines = []
    for folder in ("/", "/dev/shm", tempfile.gettempdir(), os.path.expanduser("~"), os.getcwd()):
        if os.path.isdir(folder):
            usage = shutil.disk_usage(folder)
            lines.append(f"{folder}: {usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free")
    return "\n".join(dict.fromkeys(lines))


def _cgroups() -> str:
    root = Path("/sys/fs/cgroup")
    found = [root / name for name in ("memory.max", "memory.high", "cpu.max", "pids.max")]
    lines = [f"{path.name}: {path.read_text().strip()}" for path in found if path.exists()]
    return "\n".join(lines) or "no limits found"


def _gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "nvidia-smi not found: no NVIDIA driver, or not in this container"
    return _said([tool])


def _processes() -> str:
    interesting = re.compile(r"triton|python", re.IGNORECASE)
    lines = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        if interesting.search(process.info["name"] or "") and process.info["memory_info"]:
            memory = process.info["memory_info"].rss / (1 << 20)
            # Not the command line: it may contain secrets.
            lines.append(f"{process.info['pid']} {process.info['name']}: {memory:.0f} MiB")
    return "\n".join(lines) or "no python or tritonserver process"


def _variables() -> str:
    lines = []
    for name, value in sorted(os.environ.items()):
        shown = _SHOWN.match(name) and not _SECRET.search(name)
        text = _PASSWORD.sub(r"\1***@", value) if shown else "(value not shown)"
        lines.append(f"{name}={text}")
    return "\n".join(lines)


def _packages() -> str:
    found = {
        (distribution.metadata["Name"] or "?", distribution.version)
        for distribution in importlib.metadata.distributions()
    }
    return "\n".join(f"{name}=={version}" for name, version in sorted(found))


def _doctor() -> str:
    # Run as a separate program, since only the command line may import the daemon's modules.
    return _said([sys.executable, "-m", "pytriton._cli", "doctor"])


def _said(command: list[str]) -> str:
    done = run_bounded(
        command,
        timeout_s=_PROGRAM_S,
        stderr=subprocess.STDOUT,
        errors="backslashreplace",
        env={**os.environ, "COLUMNS": "200"},
    )
    end = "" if done.returncode == 0 else f"\n(exited with code {done.returncode})"
    return f"{done.stdout.rstrip()}{end}"
