"""A fork server: a process that has imported what every worker imports, and forks a worker for each order.

It forks before the worker's first message, so it holds no data of a model, a user or a connection. Each fork gets what a
new process would have: session, working directory, output, environment variables, random seeds and name. All forks share
what the interpreter chose at startup: the hash seed of str, and memory addresses.
"""

from __future__ import annotations

import array
import errno
import gc
import os
import socket
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any, Optional

import msgspec

from pytriton._protocol import linux
from pytriton._protocol.fork_protocol import (
    BEGUN,
    FORKS,
    GO,
    LARGEST,
    CannotFork,
    ForkAnswer,
    Forker,
    Order,
    join_helpers,
    show_as,
)

#: Number of descriptors passed with an order: the worker's output, its statistics page, and a connection to the
#: dispatcher that is used until GO.
_DESCRIPTORS = 3
#: Modules that every worker imports from its environment. If one is found elsewhere, the fork server is outdated.
_WATCHED_MODULES = ("numpy", "zmq", "msgspec", "cloudpickle", "sitecustomize", "usercustomize")


def serve(parent_pid: int, channel_fd: int) -> tuple[str, int] | None:
    """Carry out orders until the dispatcher closes the channel, then return None.

    In each forked worker, return the worker's name and the descriptor of its statistics page.
    """
    linux.die_with_parent(parent_pid)
    with socket.socket(fileno=channel_fd) as channel:
        return _serve(parent_pid, channel)


def _serve(parent_pid: int, channel: socket.socket) -> tuple[str, int] | None:
    join_helpers()
    try:
        forker = Forker()
    except CannotFork as why:
        _send(channel, ForkAnswer(refused=str(why)))
        return None
    is_fresh = installation()
    sys.stdout.flush()  # otherwise, each fork would repeat the output of start-up files
    # Freeze, because a garbage collection in a fork would copy the memory that all forks share. Do not collect first: that
    # takes 20 ms, and finds only the thousand unused objects that imports leave.
    gc.freeze()
    _send(channel, ForkAnswer(pid=os.getpid()))
    while True:
        data, descriptors = _receive(channel)
        if not data:
            return None
        order = msgspec.msgpack.decode(data, type=Order)
        answer = _prepare(order, is_fresh) or _fork(forker)
        if answer is None:
            channel.close()
            _become_worker(order, parent_pid, descriptors[0], descriptors[2])
            return order.worker, descriptors[1]
        for descriptor in descriptors:
            os.close(descriptor)
        _send(channel, answer)


def _send(channel: socket.socket, answer: ForkAnswer) -> None:
    channel.send(msgspec.msgpack.encode(answer))


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive an order and its descriptors, which are close-on-exec. The order is b"" if the dispatcher is gone."""
    size = _DESCRIPTORS * array.array("i").itemsize
    data, ancillary, _, _ = channel.recvmsg(LARGEST, socket.CMSG_LEN(size), socket.MSG_CMSG_CLOEXEC)
    numbers = array.array("i")
    for _, _, block in ancillary:
        numbers.frombytes(block)
    return data, list(numbers)


def _prepare(order: Order, is_fresh: Callable[[], bool]) -> ForkAnswer | None:
    """Change to the worker's working directory. If that fails, or if this fork server is outdated, return the answer that says so."""
    if not is_fresh():
        return ForkAnswer(is_stale=True)
    try:
        if order.cwd is not None:
            os.chdir(order.cwd)
    except OSError as error:
        return ForkAnswer(error=error.errno or errno.EIO)
    return None


def _fork(forker: Forker) -> ForkAnswer | None:
    """Fork. Return the answer for the dispatcher in this process, and None in the child."""
    try:
        pid = forker.fork()
    except OSError as error:
        return ForkAnswer(refused=str(error))
    return ForkAnswer(pid=pid) if pid else None


def _become_worker(order: Order, parent_pid: int, output: int, connection: int) -> None:
    """Make this fork equivalent to a worker process started by the dispatcher. Exit if the dispatcher abandons it."""
    linux.die_with_parent(parent_pid)
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.update(order.variables)
    show_as(FORKS, order.worker)
    _reseed()
    with socket.socket(fileno=connection) as dispatcher:
        if not _is_wanted(dispatcher):
            os._exit(0)


def _is_wanted(dispatcher: socket.socket) -> bool:
    """Announce this process to the dispatcher. Return True if the dispatcher still needs the worker."""
    try:
        dispatcher.send(BEGUN + str(os.getpid()).encode())
        return dispatcher.recv(LARGEST) == GO
    except ConnectionError:  # the dispatcher has abandoned the start
        return False


def _reseed() -> None:
    """Reset random seeds, and other state that libraries initialize when they are imported. `random` reseeds itself in
    every fork.
    """
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process: Any = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()


def installation() -> Callable[[], bool]:
    """Record the installed files. Return a function that returns True as long as a new interpreter would import the
    same files.
    """
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_site_folders()]
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [*{*folders, sys.executable, *(file for file in files if isinstance(file, str))}]

    def seen() -> list[object]:
        sys.path_importer_cache.clear()
        return [*map(_stamp, paths), *map(_origin, _WATCHED_MODULES)]

    before = seen()
    return lambda: seen() == before


def _site_folders() -> list[str]:
    site = sys.modules.get("site")
    return [] if site is None else [*site.getsitepackages(), site.getusersitepackages()]


def _stamp(path: Optional[str]) -> Optional[tuple[int, int, int]]:
    """Return a value that changes when a file or the content of a folder changes; None if the path does not exist."""
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _origin(name: str) -> Optional[str]:
    """Return the file that would be imported for a module; None if it is not found, or a custom importer raises."""
    try:
        spec = PathFinder.find_spec(name)
    except Exception:
        return None
    return None if spec is None else spec.origin
