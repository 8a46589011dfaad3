"""The sizes of models, kept in the state directory, so that a memory budget need not learn them anew after a start.

One file, `sizes.json`: `{"form": 1, "models": {NAME: KnownSize}}`. It only spares estimates: one that is damaged, or of
another form, counts as none, and the next one takes its place.
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
from pytriton.dispatcher.elastic.known_size import KnownSize

_log = structlog.get_logger(__name__)

_FORM = 1
#: A size that differs by less is not worth a write.
_DIFFERS_BY = 0.02


class _Content(msgspec.Struct, frozen=True):
    form: int
    models: dict[str, KnownSize]


_decode = msgspec.json.Decoder(_Content).decode
_encode = msgspec.json.Encoder().encode


class SizeStore:
    """The file in one state directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sizes.json"
        self._written: dict[str, KnownSize] = {}
        self._problem = ""
        self._writing = threading.Lock()

    @property
    def problem(self) -> str:
        """The fault that an administrator should look at; "" while all is well."""
        if not self._problem:
            return ""
        return f"sizes of models cannot be kept in the state directory for the next start: {self._problem}"

    def read(self) -> dict[str, KnownSize]:
        """Return what is kept, by model."""
        try:
            content = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("sizes of models are learnt anew", file=str(self._path), why=str(error))
            return {}
        if content.form != _FORM or any(_is_odd(one) for one in content.models.values()):
            _log.warning("sizes of models are learnt anew: their file is of another version")
            return {}
        self._written = dict(content.models)
        return content.models

    def lacks(self, sizes: Mapping[str, KnownSize]) -> bool:
        """Whether the file says something else, so that writing is worth it."""
        if sizes.keys() != self._written.keys():
            return True
        return any(_differ(one, self._written[name]) for name, one in sizes.items())

    def write(self, sizes: Mapping[str, KnownSize]) -> None:
        """Keep these and no others. A disk that refuses costs what would have been kept."""
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
                _log.warning("sizes of models are not kept for the next start", why=str(error))
            self._problem = str(error)
            with contextlib.suppress(OSError):
                unfinished.unlink()
            return
        self._problem = ""
        self._written = dict(sizes)


def _is_odd(one: KnownSize) -> bool:
    return one.memory < 0 or one.gpu < 0 or any(size < 0 for size in one.shared.values())


def _differ(one: KnownSize, other: KnownSize) -> bool:
    if (one.registration, one.shared, one.lived) != (other.registration, other.shared, other.lived):
        return True
    sizes = ((one.memory, other.memory), (one.gpu, other.gpu))
    return any(abs(now - then) > _DIFFERS_BY * then for now, then in sizes)
