"""Protocol of fork servers, which fork workers from a process that has already imported their modules.

    dispatcher ── Order, descriptors ──▶ fork server ── clone(2), CLONE_PARENT ──▶ worker, a child of the dispatcher's
        ◀── Answer: the worker's pid ──      dispatcher ◀── BEGUN, then GO ──▶ worker

os.fork() would make the worker a child of the fork server: the dispatcher could not wait for it, and the worker would
not die with the dispatcher (PR_SET_PDEATHSIG). Except for CLONE_PARENT, the system call is made as the C library makes
it: Python's hooks run before and after it, and the thread id is correct in the child. The C library's fork handlers
(pthread_atfork(3)) do not run, so the process must be single-threaded: nothing repairs the state of other threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
from typing import Optional

import msgspec

from pytriton._protocol import linux

#: Placeholder for the worker's name in boot.py's arguments, replaced by the fork's name. As long as the longest name.
FORKS = "(forks workers)"
#: Maximum size in bytes of an order and of its answer.
LARGEST = 1 << 15

#: Sent by a worker, with its pid, on the connection that came with its order, once it is a regular process.
BEGUN = b"begun "
#: The reply it waits for before it continues: the dispatcher has recorded it.
GO = b"go"

_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_NR_SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}
_NR_GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}
#: Symbol of glibc for libthread_db(3): where the thread id is in `struct pthread`, to which pthread_self(3) points.
_TID_PLACE = "_thread_db_pthread_tid"
_CLONE_PARENT = 0x8000
#: Libraries that need their fork handlers: Intel's OpenMP, which conda's numpy uses with MKL.
_NEED_FORK_HANDLERS = ("libiomp5", "libmkl_rt")
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000


class Order(msgspec.Struct, frozen=True):
    """Request to fork a worker, sent with the descriptors of its output, stats page and start-up connection.

    Attributes:
        worker: the worker's name
        cwd: the worker's working directory
        variables: environment variables in addition to those the fork server was started with
    """

    worker: str
    cwd: Optional[str]
    variables: dict[str, str] = {}


class ForkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Message from a fork server: first whether it accepts orders, then the outcome of each order.

    Attributes:
        pid: the pid of the new worker, or of the fork server itself
        is_stale: the fork server's environment has changed
        error: the errno that made the worker's working directory unusable
        refused: why the process cannot fork
    """

    pid: int = 0
    is_stale: bool = False
    error: int = 0
    refused: str = ""


def show_as(before: str, now: str) -> None:
    """Replace part of the command line that ps(1) shows for this process, if there is room (proc(5), cmdline)."""
    with open("/proc/self/cmdline", "rb") as file:
        shown = file.read()
    start = int(linux.stat_fields("/proc/self/stat")[48])  # arg_start
    named = shown.replace(before.encode(), now.encode(), 1).ljust(len(shown), b"\0")
    if start and len(named) == len(shown) and ctypes.string_at(start, len(shown)) == shown:
        ctypes.memmove(start, named, len(named))


class CannotFork(Exception):
    """This process or system cannot fork workers; the text says why."""


def join_helpers() -> None:
    """Stop the helper threads of libraries. The libraries restart their threads when they need them.

    OpenBLAS, which numpy uses, starts one thread per core when it is loaded, ends them before a fork, and restarts
    them for the next matrix product.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the running threads
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def library_with_fork_handlers(maps: str) -> str:
    """Return the name of a mapped library that does not work without its fork handlers; "" if there is none."""
    return next((name for name in _NEED_FORK_HANDLERS if name in maps), "")


class Forker:
    """Forks this process, which must be single-threaded whenever this object is created or used."""

    def __init__(self) -> None:
        """Check that forking is possible.

        Raises:
            CannotFork: this process or this machine cannot fork workers.
        """
        self._machine = platform.machine()
        if self._machine not in _NR_CLONE:
            raise CannotFork(f"forking is not implemented for {self._machine}")
        threads = len(os.listdir("/proc/self/task")) - 1
        if threads:
            raise CannotFork(f"{threads} other threads are running")
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            library = library_with_fork_handlers(maps.read())
        if library:
            raise CannotFork(f"{library} is loaded and needs its fork handlers to run")
        self._libc = ctypes.PyDLL(None, use_errno=True)  # calls with the GIL held
        self._libc.syscall.restype = ctypes.c_long
        self._tid = self._tid_address()
        self._robust_list, self._robust_size = ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(self._robust_list), ctypes.byref(self._robust_size)
        self._syscall(_NR_GET_ROBUST_LIST, ctypes.c_long(0), *places)

    def fork(self) -> int:
        """Fork, and return the new process's pid, or 0 in the child.

        Raises:
            OSError: the system call failed.
        """
        none = ctypes.c_long(0)
        flags = ctypes.c_long(_CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID)
        places = [ctypes.c_long(self._tid), none]  # for the thread id, and for thread-local storage
        if self._machine == "aarch64":
            places.reverse()
        python = ctypes.pythonapi
        for hook in (
            python.PyOS_BeforeFork,
            python.PyOS_AfterFork_Child,
            python.PyOS_AfterFork_Parent,
        ):
            hook.restype = None
        python.PyOS_BeforeFork()
        pid = self._syscall(_NR_CLONE, flags, none, none, *places)
        if pid == 0:
            python.PyOS_AfterFork_Child()
            self._syscall(_NR_SET_ROBUST_LIST, self._robust_list, self._robust_size)
            return 0
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return pid

    def _tid_address(self) -> int:
        """Return the address of this thread's id in the C library's memory, which is the same in the child.

        prctl(PR_GET_TID_ADDRESS) no longer reports this address: since glibc 2.43, a process that has not been forked
        passes another one to the kernel. So find the id as libthread_db does for debuggers, by its place in glibc's
        description of a thread.
        """
        try:
            place = (ctypes.c_uint32 * 3).in_dll(self._libc, _TID_PLACE)  # bits, number, offset
        except ValueError:
            raise CannotFork(
                f"the C library does not export {_TID_PLACE}: it is not glibc"
            ) from None
        self._libc.pthread_self.restype = ctypes.c_void_p
        address: int = self._libc.pthread_self() + place[2]
        is_known = list(place[:2]) == [32, 1]  # otherwise, do not read what may be any address
        if not is_known or ctypes.c_int.from_address(address).value != os.getpid():
            raise CannotFork(
                "the C library does not store the thread id at the location that it declares"
            )
        return address

    def _syscall(self, numbers: dict[str, int], *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(numbers[self._machine]), *arguments)
        return result
