"""Reads log files, even while they are rotated: PATH is the newest, PATH.1 is older, then PATH.2, …"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 16
#: Interval between checks for new lines: notifications of changes need inotify, which the standard library lacks.
_POLL_S = 0.2


def tail(path: Path, lines: int) -> list[str]:
    """Return the last `lines` lines of a log, oldest first, including rotated files.

    Return [] if the log does not exist. Replace invalid UTF-8.
    """
    return _last([path, *rotated(path)], lines)


def follow(
    path: Path, lines: int, stop: threading.Event | None = None
) -> Generator[str, None, None]:
    """Yield the last `lines` lines, then each new one as it is written, until `stop` is set.

    Handles rotation, and logs that are created or replaced later. Close the generator to stop it from the same thread.
    """
    stop = stop or threading.Event()
    stream = _open(path)
    try:
        there = 0 if stream is None else _seek_last(stream, lines)
        yield from _last(rotated(path), lines - there)
        rest = b""
        while True:
            if stream is not None:
                rest += stream.read()
                *whole, rest = rest.split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in whole)
            if _is_current(stream, path):
                if stop.wait(_POLL_S):
                    return
                continue
            # The old file got its last line before it was renamed: read it to the end, then open the new one.
            if stream is not None:
                rest += stream.read()
                yield from (line.decode("utf-8", "replace") for line in rest.split(b"\n") if line)
                stream.close()
            rest, stream = b"", _open(path)
    finally:
        if stream is not None:
            stream.close()


def rotated(path: Path) -> list[Path]:
    """Return the existing rotated files of a log, newest first."""
    prefix = f"{path.name}."
    found = []
    for file in path.parent.glob(f"{path.name}.*"):
        number = file.name[len(prefix) :]
        if number.isdigit():
            found.append((int(number), file))
    return [file for _, file in sorted(found)]


def _last(files: Iterable[Path], lines: int) -> list[str]:
    """Return the last lines of `files` (newest file first), oldest line first."""
    found: list[str] = []
    for file in files:
        if len(found) >= lines:
            break
        try:
            with open(file, "rb") as stream:
                _seek_last(stream, lines - len(found))
                data = stream.read()
        except FileNotFoundError:  # rotated in between
            continue
        # Not splitlines(), which also splits at other characters that a JSON string may contain.
        whole = data[:-1] if data.endswith(b"\n") else data
        if data:
            found = [line.decode("utf-8", "replace") for line in whole.split(b"\n")] + found
    return found[-lines:] if lines > 0 else []


def _seek_last(stream: BinaryIO, lines: int) -> int:
    """Seek to the start of the last `lines` complete lines, and return their number."""
    end = position = stream.seek(0, os.SEEK_END)
    data = b""
    while position > 0 and data.count(b"\n") <= lines:
        step = min(_BLOCK, position)
        position -= step
        stream.seek(position)
        data = stream.read(step) + data
    *finished, rest = data.split(b"\n")
    wanted = finished[-lines:] if lines > 0 else []
    stream.seek(end - len(rest) - sum(len(line) + 1 for line in wanted))
    return len(wanted)


def _open(path: Path) -> BinaryIO | None:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return None


def _is_current(stream: BinaryIO | None, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return True  # there is no newer file
    if stream is None:
        return False
    mine = os.fstat(stream.fileno())
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
