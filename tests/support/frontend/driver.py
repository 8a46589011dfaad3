"""Calls the frontend's pure functions through the program of tests/native/frontend/driver.c."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path


class Refused(Exception):
    """Raised with the error that the function returned."""


class Driver:
    """The running program."""

    def __init__(self, program: Path) -> None:
        """Start it."""
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, function: str, question: bytes) -> bytes:
        """Run a function of driver.c.

        Raises:
            Refused: the function returned an error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(function.encode() + struct.pack("<I", len(question)) + question)
        self._process.stdin.flush()
        size = self._process.stdout.read(4)
        assert len(size) == 4, f"the program ended with {self._process.wait()}"
        answer = self._process.stdout.read(struct.unpack("<I", size)[0])
        if answer[:1] == b"-":
            raise Refused(answer[1:].decode())
        return answer[1:]

    def end(self) -> None:
        """Stop the program; it reports leaked memory."""
        self._process.communicate()
        assert self._process.returncode == 0
