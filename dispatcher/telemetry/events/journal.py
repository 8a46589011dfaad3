"""A bounded file of lines that outlives crashes: appended to, and rotated into one former file.

A line that a crash has cut off is followed by the next one on a line of its own; whoever reads passes it over.
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
        folder: where they lie; is made, private to this user, when the first line comes
        name: of the files
        size: bytes of both together
    """

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._path = folder / f"{name}.jsonl"
        self._former = folder / f"{name}.1.jsonl"
        self._size = size // 2
        self._file = -1
        self._written = 0

    def append(self, lines: bytes) -> None:
        """Write whole lines, and bring them to the disk.

        Raises:
            OSError: the disk refuses; the next call tries again from the start.
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
        """Yield the lines, oldest first; what cannot be read has none."""
        for path in (self._former, self._path):
            try:
                with open(path, "rb", opener=open_private) as file:
                    data = file.read(2 * self._size + 1)
            except OSError:  # not there, or not to be read: as good as empty
                continue
            yield from data.split(b"\n")

    def close(self) -> None:
        """Close the file; the next line opens it again."""
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

        A file without lines takes one, however long.
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
