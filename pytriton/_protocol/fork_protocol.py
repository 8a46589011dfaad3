"""Workers as forks of a process that has imported what they import: its orders, and the fork itself.

    dispatcher ── Order, descriptors ──▶ fork server ── clone(2), CLONE_PARENT ──▶ worker, a child of the dispatcher's
        ◀── Answer: the worker's pid ──      dispatcher ◀── BEGUN, then GO ──▶ worker

os.fork() would make the worker a child of the fork server: the dispatcher could not wait for it, and it would not die
with the dispatcher (PR_SET_PDEATHSIG). The call is made as the C library makes it, but for that flag: Python's hooks
run before and after, and the thread's number is right in the child. The C library's own handlers (pthread_atfork(3)) do
not run, which is why the process must have one thread only: what they would bring in order does not run.
"""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
from typing import Optional

import msgspec

#: Stands where a worker's name stands in the arguments of boot.py; a fork's name takes its place. As long as any name.
FORKS = "(forks workers)"
#: The most bytes of an order, and of what is said about it.
LARGEST = 1 << 15

#: What a worker says on the connection that came with its order, with its pid, once it is like any other.
BEGUN = b"begun "
#: What it waits for there before it goes on: the dispatcher knows it now.
GO = b"go"

_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_NR_SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}
_NR_GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100}
_PR_GET_TID_ADDRESS = 40
_CLONE_PARENT = 0x8000
#: Libraries that brought this in order in handlers of theirs: Intel's OpenMP, which numpy of conda has with MKL.
_KEEP_NUMBERS = ("libiomp5", "libmkl_rt")
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000


class Order(msgspec.Struct, frozen=True):
    """A worker that is wanted; with it come its output, its page and the connection on which it says that it begins.

    Attributes:
        worker: its name
        cwd: its folder
        variables: of its environment, beside those that the fork server was started with
    """

    worker: str
    cwd: Optional[str]
    variables: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a fork server: first that it takes orders, or why it cannot, then of each order what came of it.

    Attributes:
        pid: of the new worker, or of the fork server itself
        is_stale: its environment has changed
        error: the number of the error with which the worker's folder cannot be used
        refused: why it cannot fork
    """

    pid: int = 0
    is_stale: bool = False
    error: int = 0
    refused: str = ""


def show_as(before: str, now: str) -> None:
    """Show another text where ps(1) shows this process's arguments (proc(5), cmdline), if there is room for it."""
    with open("/proc/self/cmdline", "rb") as file:
        shown = file.read()
    with open("/proc/self/stat", "rb") as file:
        start = int(file.read().rpartition(b")")[2].split()[45])  # the 48th of all, arg_start
    named = shown.replace(before.encode(), now.encode(), 1).ljust(len(shown), b"\0")
    if start and len(named) == len(shown) and ctypes.string_at(start, len(shown)) == shown:
        ctypes.memmove(start, named, len(named))


class CannotFork(Exception):
    """This process, or this system, is not fit for it; says why."""


def join_helpers() -> None:
    """End the threads that libraries start for themselves, and start again when they need them.

    OpenBLAS, which numpy has, starts one for each core when it is loaded, ends them before a fork, and starts them
    again for the next product of matrices.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has threads
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def in_need_of_handlers(maps: str) -> str:
    """Return the library among a process's maps that keeps the number of its process or thread, "" if there is none."""
    return next((name for name in _KEEP_NUMBERS if name in maps), "")


class Forker:
    """Forks this process; to be made, and used, while it has one thread."""

    def __init__(self) -> None:
        """See that it can be done; raises CannotFork."""
        self._machine = platform.machine()
        if self._machine not in _NR_CLONE:
            raise CannotFork(f"it is not known how on {self._machine}")
        threads = len(os.listdir("/proc/self/task")) - 1
        if threads:
            raise CannotFork(f"{threads} threads run beside the main one")
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            library = in_need_of_handlers(maps.read())
        if library:
            raise CannotFork(f"{library} is loaded, which has to be told of a fork")
        self._libc = ctypes.PyDLL(None, use_errno=True)  # with Python's lock held
        self._libc.syscall.restype = ctypes.c_long
        self._tid = self._tid_address()
        self._robust_list, self._robust_size = ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(self._robust_list), ctypes.byref(self._robust_size)
        self._syscall(_NR_GET_ROBUST_LIST, ctypes.c_long(0), *places)

    def fork(self) -> int:
        """Return the new process's pid, 0 in that itself; raises OSError."""
        none = ctypes.c_long(0)
        flags = ctypes.c_long(_CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID)
        places = [ctypes.c_long(self._tid), none]  # of the number, and of thread-local memory
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
        """Return where the C library keeps the thread's number (prctl(2)); it is another one in the child."""
        address = ctypes.c_void_p()
        arguments = [ctypes.byref(address), *[ctypes.c_ulong(0)] * 3]
        done = self._libc.prctl(ctypes.c_int(_PR_GET_TID_ADDRESS), *arguments)
        if done != 0 or not address.value:
            raise CannotFork(
                "the kernel does not say where the C library keeps the thread's number"
            )
        if ctypes.c_int.from_address(address.value).value != os.getpid():
            raise CannotFork("the C library keeps no thread's number where the kernel says")
        return address.value

    def _syscall(self, numbers: dict[str, int], *arguments: object) -> int:
        result: int = self._libc.syscall(ctypes.c_long(numbers[self._machine]), *arguments)
        return result
