"""Profiles running workers with py-spy, which samples a process from outside while the process keeps serving.

The daemon runs py-spy, because a process may usually trace its own children, but not other processes of its user.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.messages import sendable
from pytriton.dispatcher.runtime.child import with_parent_death_signal
from pytriton.dispatcher.workers.worker import Worker

#: Number of samples per second.
_RATE = 100
_MIN_S, _MAX_S = 1.0, 300.0
#: Extra time for py-spy to read symbols before it samples, and to write its file afterwards, in seconds.
_EXTRA_S = 30.0
#: Maximum size of the stacks in a response, in bytes.
_MAX_BYTES = 4 << 20
#: Maximum size of the stacks to read, in bytes. (A worker with many threads and deep stacks has far more.)
_MAX_READ = 64 << 20
#: Maximum length of py-spy's output in an error message.
_MAX_ERROR_LENGTH = 500
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def choose_worker(
    request: messages.ProfileWorker, workers: Sequence[Worker], *, suspended: bool = False
) -> Worker:
    """Choose the worker to profile.

    Args:
        request: names the model, and optionally an instance
        suspended: whether the model has no workers because it is suspended

    Raises:
        RemoteFailure: there is no such worker
    """
    serving = sorted((one for one in workers if one.alive), key=lambda one: one.instance)
    if request.instance is not None:
        serving = [one for one in serving if one.instance == request.instance]
    if serving:
        return serving[0]
    if suspended:
        text = f"model {request.model} is suspended: profile it after a request has resumed it"
        raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
    which = "no worker" if request.instance is None else f"no worker of instance {request.instance}"
    raise RemoteFailure(
        ErrorKind.UNAVAILABLE,
        f"model {request.model} currently has {which}. See: pytriton-daemon explain {request.model}",
    )


class Profiler:
    """Runs py-spy, but never twice on the same worker at the same time.

    Args:
        folder: directory for its files
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_progress: set[int] = set()

    async def profile(self, worker: Worker, request: messages.ProfileWorker) -> messages.Profiled:
        """Profile a worker, and return its stacks with their sample counts.

        Raises:
            RemoteFailure: profiling failed; the message says why, and what to do
        """
        if not _MIN_S <= request.seconds <= _MAX_S:
            text = f"seconds={request.seconds:g}: must be between {_MIN_S:g} and {_MAX_S:g}"
            raise RemoteFailure(ErrorKind.INVALID, text)
        program = _program()
        if program is None:
            raise RemoteFailure(
                ErrorKind.UNAVAILABLE,
                f"py-spy is not installed in the daemon's environment. Install it: {sys.executable} -m pip install py-spy",
            )
        if worker.pid in self._in_progress:
            text = f"worker {worker.name} (pid {worker.pid}) is already being profiled"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text)
        self._in_progress.add(worker.pid)
        try:
            with tempfile.NamedTemporaryFile(
                dir=self._folder, prefix="profile-", suffix=".txt"
            ) as file:
                output = await _run(program, worker.pid, request.seconds, file.name)
                text, left_out = await asyncio.to_thread(_read, Path(file.name))
            if not text:
                raise RemoteFailure(ErrorKind.UNAVAILABLE, _failure(worker, request.model, output))
        except OSError as error:
            text = f"worker {worker.name} cannot be profiled: {error}. Free disk space and retry"
            raise RemoteFailure(ErrorKind.UNAVAILABLE, text) from error
        finally:
            self._in_progress.discard(worker.pid)
        return messages.Profiled(
            worker.instance, worker.name, worker.pid, round(request.seconds), _RATE, text, left_out
        )


def _program() -> str | None:
    """Return the path of py-spy: in the daemon's Python environment, or on PATH."""
    own = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return own if os.access(own, os.X_OK) else shutil.which("py-spy")


async def _run(program: str, pid: int, seconds: float, file: str) -> str:
    """Run py-spy and return its output."""
    whole_s = round(seconds)  # py-spy accepts only whole seconds
    command = [
        program, "record", "--pid", str(pid), "--duration", str(whole_s), "--rate", str(_RATE),
        "--format", "raw", "--full-filenames", "--idle", "--threads", "--output", file,
    ]  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        *with_parent_death_signal(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await asyncio.wait_for(process.communicate(), whole_s + _EXTRA_S)
    except asyncio.TimeoutError:
        return f"it did not finish within {whole_s + _EXTRA_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="backslashreplace")


def _failure(worker: Worker, model: str, output: str) -> str:
    who = f"worker {worker.name} (pid {worker.pid}) of model {model}"
    if not worker.alive:
        return f"{who} exited during profiling. See: pytriton-daemon explain {model}"
    if "ermission" in output or "ptrace" in output:
        scope = _YAMA.read_text().strip() if _YAMA.exists() else ""
        yama = f" (kernel.yama.ptrace_scope is {scope})" if scope not in ("", "0") else ""
        return (
            f"the system does not permit the daemon to trace {who}{yama}: grant it CAP_SYS_PTRACE (in a container "
            "--cap-add SYS_PTRACE), or allow it temporarily: sysctl kernel.yama.ptrace_scope=0"
        )
    return f"py-spy could not trace {who}: {sendable(output.strip())[:_MAX_ERROR_LENGTH]}"


def _read(file: Path) -> tuple[str, int]:
    """Read the stacks in a file; return the most frequent ones that fit into a response, and the number of samples
    omitted.
    """
    with file.open("rb") as stream:
        stacks = stream.read(_MAX_READ)
        if stream.read(1):
            stacks = stacks[: stacks.rfind(b"\n") + 1]
    return _most_frequent(stacks.decode(errors="backslashreplace"))


def _most_frequent(stacks: str) -> tuple[str, int]:
    """Return the most frequent stacks that fit into a response, and the number of samples omitted."""
    if len(stacks) <= _MAX_BYTES:
        return stacks, 0
    lines = [line for line in stacks.split("\n") if line]
    lines.sort(key=_count, reverse=True)
    chosen: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > _MAX_BYTES:
            break
        chosen.append(line)
    return "\n".join(chosen), sum(map(_count, lines[len(chosen) :]))


def _count(line: str) -> int:
    count = line.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
