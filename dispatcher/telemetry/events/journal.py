"""A bounded append-only file of lines that survives crashes, rotated into one previous file.

After a line that a crash has truncated, the next one starts on a new line; readers skip the truncated one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pytriton._protocol.files.private_files import open_private

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class Journal:
    """The lines in NAME.jsonl and, older ones, in NAME.1.jsonl.

    Args:
        folder: their directory; created with the first line, private to this user
        name: base name of the files
        size: maximum size of both files together, in bytes
    """

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._path = folder / f"{name}.jsonl"
        self._former = folder / f"{name}.1.jsonl"
        self._size = size // 2
        self._file = -1
        self._written = 0

    def append(self, lines: bytes) -> None:
        """Append whole lines and sync them to the disk.

        Raises:
            OSError: the disk refuses; the next call starts again by opening the file.
        """
        try:
            if self._file < 0:
                self._open()
            start = 0
            while start < len(lines):
                end = self._fits(lines, start)
                if end == start:
                    self._rotate()
                else:
                    self._write(memoryview(lines)[start:end])
                    start = end
            os.fsync(self._file)
        except OSError:
            self.close()
            raise

    def read(self) -> Iterator[bytes]:
        """Yield the lines, oldest first. Skip files that cannot be read."""
        for path in (self._former, self._path):
            try:
                with open(path, "rb", opener=open_private) as file:
                    data = file.read(2 * self._size + 1)
            except OSError:  # missing or unreadable: treat as empty
                continue
            yield from data.split(b"\n")

    def close(self) -> None:
        """Close the file; the next append reopens it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        file = open_private(str(self._path), _FLAGS)
        self._file = file
        self._written = os.fstat(file).st_size
        if self._written and not _ends_a_line(self._path):
            self._written += os.write(file, b"\n")

    def _fits(self, lines: bytes, start: int) -> int:
        """Return the end of the lines from `start` on that the file has room for.

        An empty file accepts one line of any length.
        """
        room = self._size - self._written
        if len(lines) - start <= room:
            return len(lines)
        end = lines.rfind(b"\n", start, start + max(room, 0)) + 1
        if end == 0 and self._written == 0:
            end = lines.find(b"\n", start) + 1 or len(lines)
        return end or start

    def _write(self, left: memoryview) -> None:
        while left:
            count = os.write(self._file, left)
            self._written += count
            left = left[count:]

    def _rotate(self) -> None:
        os.fsync(self._file)
        os.replace(self._path, self._former)
        self.close()
        self._open()


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb", opener=open_private) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
