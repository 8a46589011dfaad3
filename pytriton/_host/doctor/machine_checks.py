"""The checks of `doctor` that concern the machine: kernel, memory, limits, GPUs, directories."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import socket
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytriton._host.bounded_run import run_bounded
from pytriton._host.install.wheel import glibc_version, machine_flaw
from pytriton._protocol import linux
from pytriton._protocol.files.rundir import (
    ENV_RUNTIME_DIR,
    MAX_SOCKET_PATH,
    RuntimeDir,
    RuntimeDirError,
)

SHM = Path("/dev/shm")
#: Triton's Python backend keeps the tensors of all in-flight requests there.
SHM_COMFORTABLE_BYTES = 256 << 20
#: One descriptor for each client connection, and a few for each worker.
OPEN_FILES_COMFORTABLE = 1024
#: With less free space, the state directory soon loses events and registrations are refused.
_STATE_BYTES = 1 << 20
GPU_QUERY_TIMEOUT_S = 20.0


def check_machine(own_server: bool) -> Check:
    """Check that the processor and the C library meet the requirements of the downloaded binaries.

    Args:
        own_server: the user's own tritonserver will be used, so the check only reports what the machine has.
    """
    flaw = None if own_server else machine_flaw()
    if flaw is not None:
        mend = "use a newer system, a container, or a tritonserver of your own"
        return Check("machine", "problem", flaw, mend)
    libc = glibc_version()
    shown = f"glibc {libc[0]}.{libc[1]}" if libc else "a C library other than glibc"
    system = os.uname()
    return Check("machine", "ok", f"{system.machine}, {shown}, Linux {system.release}")


def check_shared_memory(used: bool) -> Check:
    """Check that /dev/shm is writable and large enough for tritonserver.

    Args:
        used: batches will pass through it. The compiled proxy keeps them in anonymous memory.
    """
    if not used:
        return Check("/dev/shm", "ok", "its size does not matter to the compiled proxy")
    try:
        with tempfile.NamedTemporaryFile(dir=SHM) as file:
            file.write(b"\0" * 4096)
    except OSError as error:
        return Check(
            "/dev/shm",
            "problem",
            f"cannot be written: {error.strerror}",
            "mount a tmpfs there that this user can write to; tritonserver keeps tensors in it",
        )
    usage = shutil.disk_usage(SHM)
    detail = f"{usage.free >> 20} MiB of {usage.total >> 20} MiB free"
    if usage.free < SHM_COMFORTABLE_BYTES:
        return Check(
            "/dev/shm",
            "warning",
            f"{detail}; requests with large tensors will fail",
            "remount it with a larger size; for a container: docker run --shm-size=1g",
        )
    return Check("/dev/shm", "ok", detail)


def check_memfd() -> Check:
    """Check that anonymous shared memory can be created, sized and written."""
    try:
        descriptor = os.memfd_create("pytriton-doctor", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        mend = "use Linux 3.17 or newer, or allow memfd_create in the container's seccomp profile"
        return Check("memfd", "problem", f"memfd_create does not work: {error}", mend)
    try:
        os.ftruncate(descriptor, 4096)
        os.pwrite(descriptor, b"x", 4095)
    finally:
        os.close(descriptor)
    return Check("memfd", "ok", "anonymous shared memory works")


def check_pidfd() -> Check:
    """Check that the daemon can wait for the exit of other processes."""
    try:
        os.close(linux.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        mend = "use Linux 5.3 or newer, or allow pidfd_open in the container's seccomp profile"
        return Check("pidfd", "problem", f"pidfd_open does not work: {error}", mend)
    return Check("pidfd", "ok", "exits of processes are noticed at once")


def check_runtime_dir(path: Path) -> Check:
    """Check that the runtime directory can be created, is private, and supports unix sockets."""
    name = "runtime directory"
    mend = f"choose another one with --runtime-dir or {ENV_RUNTIME_DIR}"
    longest = len(os.fsencode(str(RuntimeDir(path).lane_socket("w" + "9" * 8))))
    if longest > MAX_SOCKET_PATH:
        detail = f"{path}: the path is {longest - MAX_SOCKET_PATH} bytes too long for unix sockets"
        return Check(name, "problem", detail, mend)
    if os.path.lexists(path):
        try:
            RuntimeDir(path).check()
        except (RuntimeDirError, OSError) as error:
            return Check(name, "problem", str(error), mend)
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            detail = f"{path} is accessible to other users; the next start makes it private"
            return Check(name, "warning", detail, f"chmod 700 {path}")
    parent = nearest_existing(path)
    if not os.access(parent, os.W_OK | os.X_OK):
        return Check(name, "problem", f"{path} cannot be created: {parent} is not writable", mend)
    flaw = _socket_flaw(parent)
    if flaw is not None:
        return Check(name, "problem", f"unix sockets cannot be created in {parent}: {flaw}", mend)
    movable = RuntimeDir(path).movable_at()
    if movable is not None:
        detail = f"other users can rename entries of {movable}, including {path}"
        return Check(name, "warning", detail, f"chmod +t {movable}, or make that directory private")
    return Check(name, "ok", f"{path}: unix sockets work there")


def check_state_dir(path: Path) -> Check:
    """Check that the state directory can be created and written."""
    name = "state directory"
    mend = "free some space, or choose another one with --state-dir; --ephemeral persists nothing"
    parent = nearest_existing(path)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return Check(name, "problem", f"{path}: this user cannot write to {parent}", mend)
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"\0" * _STATE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        detail = f"{path}: {_STATE_BYTES >> 10} KiB could not be written: {error.strerror}"
        return Check(name, "problem", detail, mend)
    return Check(name, "ok", f"{path}: {shutil.disk_usage(parent).free >> 20} MiB free")


def _socket_flaw(folder: Path) -> str | None:
    try:
        # Short names: this directory's path may use nearly all bytes that a socket's path may have.
        with tempfile.TemporaryDirectory(prefix=".d", dir=folder) as scratch:
            _bind_and_close(f"{scratch}/s")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _bind_and_close(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)


def nearest_existing(path: Path) -> Path:
    """Return the path itself if it exists, else its nearest existing ancestor."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def check_open_files() -> Check:
    """Check that a process may open enough file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if n == resource.RLIM_INFINITY else str(n) for n in (soft, hard)]
    detail = f"{shown[0]} (can be raised to {shown[1]})"
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_COMFORTABLE:
        mend = "ulimit -n 65536, or LimitNOFILE=65536 in a systemd unit"
        return Check("open files", "warning", f"{detail}: few clients can connect at once", mend)
    return Check("open files", "ok", detail)


def check_gpus() -> Check:
    """List the GPUs that NVIDIA's driver reports. A machine without GPUs is fine."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check("GPUs", "ok", "no NVIDIA driver on this machine; models run on the CPU")
    query = "--query-gpu=index,name,memory.total,driver_version"
    mend = "check whether nvidia-smi works; models run on the CPU until then"
    try:
        done = run_bounded([program, query, "--format=csv,noheader"], timeout_s=GPU_QUERY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        late = f"nvidia-smi did not answer within {GPU_QUERY_TIMEOUT_S:g} s"
        return Check("GPUs", "warning", late, mend)
    said = (done.stdout.strip() or done.stderr.strip()).replace("\n", "; ")
    if done.returncode != 0:
        return Check("GPUs", "warning", f"nvidia-smi fails: {said[:300]}", mend)
    return Check("GPUs", "ok", said or "the driver reports no GPU; models run on the CPU")


# ── The result of one check of `pytriton-daemon doctor` ──

#: "ok": it works. "warning": it works, with the limitation in `detail`. "problem": a daemon would not start or not serve.
Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Check:
    """The result of one check: a line of the table that `doctor` prints."""

    name: str
    status: Status
    detail: str  #: what the check found
    mend: str = ""  #: how to fix it; empty if there is nothing to fix

    def as_dict(self) -> dict[str, str]:
        """Return the fields as a dictionary of strings, for JSON."""
        return dataclasses.asdict(self)
