"""Measured model sizes, stored in the state directory so that the memory budget knows them after a restart.

The file is `sizes.json`: `{"form": 1, "models": {NAME: KnownSize}}`. Sizes only replace estimates, so a damaged file or
one of another form is ignored, and the next write overwrites it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from pytriton._protocol.files.private_files import open_private
from pytriton.dispatcher.scaling.memory_policy import KnownSize

_log = structlog.get_logger(__name__)

_FORM = 1
#: Smaller relative differences are not worth a write.
_DIFFERS_BY = 0.02


class _Content(msgspec.Struct, frozen=True):
    form: int
    models: dict[str, KnownSize]


_decode = msgspec.json.Decoder(_Content).decode
_encode = msgspec.json.Encoder().encode


class SizeStore:
    """The sizes file of one state directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sizes.json"
        self._written: dict[str, KnownSize] = {}
        self._problem = ""
        self._writing = threading.Lock()

    @property
    def problem(self) -> str:
        """A problem with the file that an administrator should fix; "" if there is none."""
        if not self._problem:
            return ""
        return f"model sizes cannot be stored in the state directory for the next start: {self._problem}"

    def read(self) -> dict[str, KnownSize]:
        """Return the stored sizes, by model."""
        try:
            content = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning(
                "stored model sizes ignored: cannot read the file",
                file=str(self._path),
                why=str(error),
            )
            return {}
        if content.form != _FORM or any(_is_negative(one) for one in content.models.values()):
            _log.warning("stored model sizes ignored: another version wrote the file")
            return {}
        self._written = dict(content.models)
        return content.models

    def lacks(self, sizes: Mapping[str, KnownSize]) -> bool:
        """Return whether `sizes` differ from the stored sizes so much that the file should be written again."""
        if sizes.keys() != self._written.keys():
            return True
        return any(_differ(one, self._written[name]) for name, one in sizes.items())

    def write(self, sizes: Mapping[str, KnownSize]) -> None:
        """Replace the stored sizes. A write error is only reported; the next start then reads the old sizes."""
        with self._writing:
            self._write(sizes)

    def _write(self, sizes: Mapping[str, KnownSize]) -> None:
        unfinished = self._path.with_suffix(".unfinished")
        try:
            with open(unfinished, "wb", opener=open_private) as file:
                file.write(_encode(_Content(_FORM, dict(sizes))))
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self._path)
        except OSError as error:
            if str(error) != self._problem:
                _log.warning("cannot store model sizes", why=str(error))
            self._problem = str(error)
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return
        self._problem = ""
        self._written = dict(sizes)


def _is_negative(one: KnownSize) -> bool:
    return one.memory < 0 or one.gpu < 0 or any(size < 0 for size in one.shared.values())


def _differ(one: KnownSize, other: KnownSize) -> bool:
    if (one.registration, one.shared, one.lived) != (other.registration, other.shared, other.lived):
        return True
    sizes = ((one.memory, other.memory), (one.gpu, other.gpu))
    return any(abs(now - then) > _DIFFERS_BY * then for now, then in sizes)
