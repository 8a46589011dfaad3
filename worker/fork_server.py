"""A fork server: a process that has imported what every worker imports, and forks a worker for each order.

It holds no data of a model, a user or a connection: the fork happens before a worker's first message. The fork
recreates what a new process would have of its own: session, folder, output, variables, random numbers, name.
All forks share what the interpreter chooses at startup: the hash seed of str, and memory addresses.
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

#: Descriptors passed with an order: the worker's output, its stats page, its connection to the dispatcher until GO.
_DESCRIPTORS = 3
#: Modules whose location may change between starts: those that every worker imports from its environment.
_FOUND = ("numpy", "zmq", "msgspec", "cloudpickle", "sitecustomize", "usercustomize")


def serve(parent_pid: int, channel_fd: int) -> tuple[str, int] | None:
    """Fork for each order. Return the worker's name and the descriptor of its stats page in the fork, None at the end."""
    linux.die_with_parent(parent_pid)
    with socket.socket(fileno=channel_fd) as channel:
        return _serve(parent_pid, channel)


def _serve(parent_pid: int, channel: socket.socket) -> tuple[str, int] | None:
    join_helpers()
    try:
        forker = Forker()
    except CannotFork as why:
        _say(channel, ForkAnswer(refused=str(why)))
        return None
    is_fresh = installation()
    sys.stdout.flush()  # output of start-up files belongs to this process
    # A collection in a fork would copy the memory that all of them share. None is made before: it would take 20 ms to
    # find the thousand unused objects that imports leave.
    gc.freeze()
    _say(channel, ForkAnswer(pid=os.getpid()))
    while True:
        data, descriptors = _receive(channel)
        if not data:
            return None
        order = msgspec.msgpack.decode(data, type=Order)
        answer = _obstacle(order, is_fresh) or _fork(forker)
        if answer is None:
            channel.close()
            _begin(order, parent_pid, descriptors[0], descriptors[2])
            return order.worker, descriptors[1]
        for descriptor in descriptors:
            os.close(descriptor)
        _say(channel, answer)


def _say(channel: socket.socket, answer: ForkAnswer) -> None:
    channel.send(msgspec.msgpack.encode(answer))


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Return an order and its close-on-exec descriptors; b"" if the dispatcher is gone."""
    size = _DESCRIPTORS * array.array("i").itemsize
    data, ancillary, _, _ = channel.recvmsg(LARGEST, socket.CMSG_LEN(size), socket.MSG_CMSG_CLOEXEC)
    numbers = array.array("i")
    for _, _, block in ancillary:
        numbers.frombytes(block)
    return data, list(numbers)


def _obstacle(order: Order, is_fresh: Callable[[], bool]) -> ForkAnswer | None:
    """Change to the worker's folder, so that the worker starts there. Return why that fails, or why it cannot fork."""
    if not is_fresh():
        return ForkAnswer(is_stale=True)
    try:
        if order.cwd is not None:
            os.chdir(order.cwd)
    except OSError as error:
        return ForkAnswer(error=error.errno or errno.EIO)
    return None


def _fork(forker: Forker) -> ForkAnswer | None:
    """Fork, and return the outcome; None in the fork."""
    try:
        pid = forker.fork()
    except OSError as error:
        return ForkAnswer(refused=str(error))
    return ForkAnswer(pid=pid) if pid else None


def _begin(order: Order, parent_pid: int, output: int, connection: int) -> None:
    """Become a process like one started by the dispatcher itself. Returns only when that is done."""
    linux.die_with_parent(parent_pid)
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.environ.update(order.variables)
    show_as(FORKS, order.worker)
    _renew()
    with socket.socket(fileno=connection) as dispatcher:
        if not _is_wanted(dispatcher):
            os._exit(0)


def _is_wanted(dispatcher: socket.socket) -> bool:
    """Announce this process as a worker; return True if the dispatcher still wants it."""
    try:
        dispatcher.send(BEGUN + str(os.getpid()).encode())
        return dispatcher.recv(LARGEST) == GO
    except ConnectionError:  # it has abandoned the start
        return False


def _renew() -> None:
    """Renew state that libraries initialized at import, such as random seeds; `random` itself does so in every fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        process: Any = sys.modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
        process.ORIGINAL_DIR = os.getcwd()


def installation() -> Callable[[], bool]:
    """Return a function that checks whether a new interpreter would import the same files as this one."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_site_folders()]
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [*{*folders, sys.executable, *(file for file in files if isinstance(file, str))}]

    def seen() -> list[object]:
        sys.path_importer_cache.clear()
        return [*map(_stamp, paths), *map(_origin, _FOUND)]

    before = seen()
    return lambda: seen() == before


def _site_folders() -> list[str]:
    site = sys.modules.get("site")
    return [] if site is None else [*site.getsitepackages(), site.getusersitepackages()]


def _stamp(path: Optional[str]) -> Optional[tuple[int, int, int]]:
    """Return a stamp that changes with a file or the content of a folder; None if it does not exist."""
    try:
        found = os.stat(path or "")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _origin(name: str) -> Optional[str]:
    """Return the file that would be imported for a module; None if there is none or a custom importer fails."""
    try:
        spec = PathFinder.find_spec(name)
    except Exception:
        return None
    return None if spec is None else spec.origin
