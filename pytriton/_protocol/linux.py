"""Linux system calls, including those that some Python builds lack (conda's and uv's), and memory figures."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import platform
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

# asm-generic numbers are the same on every architecture since Linux 5.1; memfd_create is older.
_NR_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}
_NR_PIDFD_OPEN = 434
_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
# sys/inotify.h
_IN_ATTRIB = 0x4
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
# linux/fcntl.h. Python's fcntl module has these names since 3.8, but only if its build headers did.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_F_SEAL_WRITE = 8
_FOR_GOOD = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_WRITE
#: The control groups of this process, and where those of all processes are mounted.
_OWN_GROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
#: Controller -> the files with a control group's memory limit and usage, and the line of memory.stat with the page cache
#: that is reclaimed under pressure. "" stands for version 2.
_MEMORY_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *arguments: object) -> int:
    result: int = _libc().syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def memfd_create(name: str) -> int:
    """Create sealable anonymous memory and return its descriptor, which is close-on-exec (memfd_create(2))."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    number = _NR_MEMFD_CREATE[platform.machine()]
    flags = ctypes.c_uint(_MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    return _syscall(number, ctypes.c_char_p(name.encode()), flags)


def seal_against_shrinking(fd: int) -> None:
    """Seal the memory against shrinking, so that its readers can never get SIGBUS.

    This also forbids further seals: a process with a read-only descriptor of the memory can open a writable one through
    /proc, and could otherwise prevent the owner from growing or writing the memory.
    """
    fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)


def is_sealed_against_shrinking(fd: int) -> bool:
    """Return True if the memory behind `fd` is sealed against shrinking."""
    try:
        return bool(fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK)
    except OSError:  # not a file that supports seals
        return False


def seal_for_good(fd: int) -> None:
    """Seal the memory against all changes, even by its owner. No process may have a writable mapping of it."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _FOR_GOOD)


def is_sealed_for_good(fd: int) -> bool:
    """Return True if the memory behind `fd` is sealed against all changes."""
    try:
        return fcntl.fcntl(fd, _F_GET_SEALS) & _FOR_GOOD == _FOR_GOOD
    except OSError:  # not a file that supports seals
        return False


def available_memory() -> int:
    """Return how many bytes can be allocated before the kernel kills processes.

    This is the machine's MemAvailable (proc(5)), or less if the limits of this process's control groups leave less. No
    other limit covers memfds, and allocating one does not fail when memory runs out.
    """
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        kib = next(line.split()[1] for line in meminfo if line.startswith("MemAvailable:"))
    return min([int(kib) * 1024, *(left for _, left in _memory_limits())])


def total_memory() -> int:
    """Return the machine's total memory in bytes, or the limit of this process's control groups if that is lower."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        kib = next(line.split()[1] for line in meminfo if line.startswith("MemTotal:"))
    return min([int(kib) * 1024, *(limit for limit, _ in _memory_limits())])


def usable_cpus() -> float:
    """Return how many cores CPU affinity and cgroup quotas allow this process and its children to use."""
    return min([float(len(os.sched_getaffinity(0))), *_cpu_quotas()])


def max_active_waits() -> int:
    """Return how many threads of a process may poll for messages at a time instead of sleeping.

    A quarter of the processors. None with fewer than two, or within a quota, where a processor that seems to be idle
    may not be free.
    """
    cpus = len(os.sched_getaffinity(0))
    return max(1, cpus // 4) if 2 <= cpus <= usable_cpus() else 0


def _cpu_quotas() -> Iterator[float]:
    """Yield the number of cores that each control group may use at most, if it has a quota."""
    for group in _control_groups():
        with contextlib.suppress(OSError, ValueError):  # the root, no controller, or "max"
            quota, period = map(int, (group / "cpu.max").read_text().split())
            yield quota / period
    for group in _control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):  # version 2
            quota, period = (
                int((group / f"cpu.cfs_{one}_us").read_text()) for one in ("quota", "period")
            )
            if quota > 0:  # -1: none
                yield quota / period


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the memory limit of each control group that has one, and how much of it is left, in bytes."""
    for controller, (limit_file, used_file, cache) in _MEMORY_FILES.items():
        for group in _control_groups(controller):
            with contextlib.suppress(OSError, ValueError):  # the root, no controller, or "max"
                limit = int((group / limit_file).read_text())
                used = int((group / used_file).read_text())
                stat = dict(
                    line.split() for line in (group / "memory.stat").read_text().splitlines()
                )
                yield limit, max(0, limit - used + int(stat.get(cache, 0)))


def _control_groups(controller: str = "") -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own up to the root: of v2, or of a controller of v1.

    Within a container, the own folder may be missing, because its root is mounted at the root's place.
    """
    groups = (line.split(":", 2) for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines())
    own = next((path for _, names, path in groups if controller in names.split(",")), "/")
    folders = own.strip("/").split("/")
    for depth in range(len(folders), -1, -1):
        yield Path(_CGROUPS, controller, *folders[:depth])


def oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has killed since boot (proc(5))."""
    with open("/proc/vmstat", encoding="ascii") as vmstat:
        return next((int(line.split()[1]) for line in vmstat if line.startswith("oom_kill ")), 0)


def pidfd_open(pid: int) -> int:
    """Return a descriptor that becomes readable when process `pid` ends (pidfd_open(2), Linux 5.3).

    Raises:
        ProcessLookupError: the process has exited
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return _syscall(_NR_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0))
    except OSError as error:
        # Depending on its version, the kernel reports one of these for a process that it is removing.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        raise


def stat_fields(stat: str | Path) -> list[bytes]:
    """Return the fields of /proc/PID/stat, or of a thread's file. The index of a field is its number in proc(5).

    Raises:
        OSError: the process or thread has exited
    """
    with open(stat, "rb") as file:
        start, _, rest = file.read().rpartition(b")")  # the name may contain anything
    pid, _, name = start.partition(b" (")
    return [b"", pid, name, *rest.split()]


def watch_for_removal(paths: Iterable[Path]) -> int:
    """Return a descriptor that becomes readable when one of these files or folders is deleted or renamed (inotify(7)).

    Raises:
        OSError: a path does not exist, or the user has too many watches.
    """
    fd: int = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd >= 0 and all(
        _libc().inotify_add_watch(fd, os.fsencode(path), _removal_mask(path)) >= 0 for path in paths
    ):
        return fd
    code = ctypes.get_errno()
    if fd >= 0:
        os.close(fd)
    raise OSError(code, os.strerror(code))


def _removal_mask(path: Path) -> ctypes.c_uint32:
    # Deleting a file that a process has open changes only its number of links, which is one of its attributes. For a
    # folder, changed attributes of everything in it would be reported, too.
    attributes = 0 if path.is_dir() else _IN_ATTRIB
    return ctypes.c_uint32(attributes | _IN_DELETE_SELF | _IN_MOVE_SELF)


class _Piece(ctypes.Structure):
    """struct iovec for process_vm_readv(2)."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def is_readable(start: int, nbytes: int) -> bool:
    """Return True if a process that may read this one's memory can read these bytes (process_vm_readv(2)).

    Memory that a driver has mapped for a device is not readable. Only the first and the last byte are checked: a
    tensor's memory is all of one kind.
    """
    read = ctypes.create_string_buffer(2)
    pieces = (_Piece * 2)(_Piece(start, 1), _Piece(start + nbytes - 1, 1))
    target = _Piece(ctypes.addressof(read), 2)
    none, one, two = map(ctypes.c_ulong, range(3))
    target_ref = ctypes.byref(target)
    size: int = _libc().process_vm_readv(os.getpid(), target_ref, one, pieces, two, none)
    return size == 2


def allow_reading(pid: int) -> None:
    """Allow a process of the same user to read this one's memory, even if Yama would forbid it (prctl(2)).

    With Yama's usual setting (ptrace_scope 1), only ancestors may read it. Without Yama, this has no effect.
    """
    _libc().prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), *[ctypes.c_ulong(0)] * 3)


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent, `parent_pid`, exits (prctl(2)), or has exited already."""
    if _libc().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
