"""The state directory: what is registered, kept for the next start of the daemon.

Layout::

    <state directory>/
      lock                       locked (flock) by the daemon that uses it
      models/NAME.registration   one file per model
      models/NAME.previous       what NAME.registration held before it was replaced, for rollback
      sizes.json                 what workers of models took at their last load, see size_store.py
      set-aside/                 files that were damaged, kept to be looked at; others that cannot be used stay

A file is one line of text, ``pytriton-registration 1 <sha256 of the rest>``, and then MessagePack
(`_Content`). It is written beside its place, brought to the disk and renamed, so that a crash at any
moment leaves the old one or the new one. Payloads are bytes to the daemon: they are opened in
workers only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.files.private_files import open_private

_OWN_FORM = 1
_FORMAT = f"pytriton-registration {_OWN_FORM} ".encode()
_FORM = re.compile(rb"pytriton-registration ([0-9]{1,6}) ")
_PRESENT, _PREVIOUS = ".registration", ".previous"
#: Of files that do not count: the next start removes them.
UNFINISHED = ".unfinished"


class StoreError(Exception):
    """The state directory cannot be used, or something in it cannot be written; says what to do."""


class DamagedEntry(Exception):
    """A file holds no registration."""


class ForeignEntry(DamagedEntry):
    """A whole file of a version of pytriton-daemon that knows more than this one."""


class Entry(msgspec.Struct, frozen=True):
    """A registration as it is kept.

    Attributes:
        serial: orders them
        registered_at: seconds since the epoch
        replaces: whether another one of its name was kept before; None: written by a version that did not say so
    """

    serial: int
    registered_at: float
    spec: messages.ModelSpec
    payloads: list[bytes]
    replaces: Optional[bool] = None


class Content(NamedTuple):
    """The result of `Store.read`: registrations in order, a sentence about each damaged file."""

    entries: list[Entry]
    problems: list[str]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """Return the content of an entry's file."""
    content = _encoder.encode(entry)
    return _FORMAT + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def decode(data: bytes) -> Entry:
    """Return the entry in a file's content.

    Raises:
        ForeignEntry: a newer version has written it.
        DamagedEntry: it is not exactly what `encode` returns; says what is wrong.
    """
    head, newline, content = data.partition(b"\n")
    form = _FORM.match(head)
    if form is not None and newline and int(form[1]) > _OWN_FORM:
        raise ForeignEntry(f"it has form {int(form[1])}, and this version knows form {_OWN_FORM}")
    if not head.startswith(_FORMAT) or not newline:
        raise DamagedEntry(f"it begins with {head[:40]!r}, not with {_FORMAT.decode()!r}")
    if hashlib.sha256(content).hexdigest().encode() != head[len(_FORMAT) :]:
        raise DamagedEntry("its checksum is wrong: it was damaged or cut off")
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ForeignEntry(f"it says what this version does not know ({error})") from error


class Store:
    """The registrations in one state directory, which no other daemon uses meanwhile."""

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        """Make the folder, private to its owner, and lock it; a former version of this process may have the `lock`.

        Raises:
            StoreError: it cannot be made or written, or another daemon uses it.
        """
        self._models = folder / "models"
        self._set_aside = folder / "set-aside"
        self._serial = 0
        try:
            for path in (folder, self._models, self._set_aside):
                _make_private(path)
            if lock is None:
                lock = open_private(str(folder / "lock"), os.O_CREAT | os.O_RDWR)
            self._lock = lock
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"another daemon uses the state directory {folder}. Give this one its own with --state-dir."
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot use the state directory {folder}: {error}. Choose another one with --state-dir, or "
                "keep nothing with --ephemeral."
            ) from error

    @property
    def lock(self) -> int:
        """The descriptor that keeps others from using the folder."""
        return self._lock

    def close(self) -> None:
        """Let others use the folder."""
        os.close(self._lock)

    def read(self) -> Content:
        """Return what is kept; damaged files are moved aside."""
        entries: list[Entry] = []
        problems: list[str] = []
        for path in sorted(self._models.iterdir()):
            if path.suffix == UNFINISHED:
                with contextlib.suppress(OSError):  # harms nobody
                    path.unlink()
            elif path.suffix == _PRESENT:
                entry = self._read(path, problems)
                entries.extend([] if entry is None else [entry])
        entries.sort(key=lambda entry: entry.serial)
        self._serial = max((entry.serial for entry in entries), default=0)
        return Content(entries, problems)

    def previous(self, name: str) -> Entry | None:
        """Return what a kept model was before it was replaced; None when it has replaced nothing.

        Raises:
            StoreError: it has, and that cannot be read, or is there no more.
        """
        path = self._path(name, _PREVIOUS)
        problems: list[str] = []
        entry = self._read(path, problems) if path.exists() else None
        if problems:
            raise StoreError(problems[0])
        if entry is None and not self.is_first(name):
            raise StoreError(
                f"what model {name} has replaced cannot be served again: {path} is there no more. Where it was "
                f"damaged, it lies in {self._set_aside}; register it anew, with replace=True (--replace)"
            )
        return entry

    def is_first(self, name: str) -> bool:
        """Whether a kept model has replaced nothing.

        Raises:
            StoreError: its file cannot be read.
        """
        path = self._path(name, _PRESENT)
        try:
            replaces = _load(path).replaces
        except (OSError, DamagedEntry) as error:
            raise StoreError(
                f"whether model {name} has replaced another one is not known: {path} cannot be read: {error}"
            ) from error
        if replaces is None:
            return not self._path(name, _PREVIOUS).exists()
        return not replaces

    def write(
        self, spec: messages.ModelSpec, payloads: Sequence[bytes], registered_at: float
    ) -> Unfinished:
        """Write a registration beside its place; nothing has changed until it is finished.

        What is kept of its name by now becomes the previous one then.

        Raises:
            StoreError: it cannot be written.
        """
        present = self._path(spec.name, _PRESENT)
        former = self._former(spec.name)
        # A model that is replaced keeps its place in the order.
        serial = self._next_serial() if former is None else former.serial
        entry = Entry(serial, registered_at, spec, list(payloads), replaces=present.exists())
        return Unfinished(self._write(entry), present, self._path(spec.name, _PREVIOUS))

    def amend(self, entry: Entry, changes: Mapping[str, Any]) -> Unfinished:
        """Write a kept registration with other fields of its specification, beside its place, and else as it is kept.

        What it has replaced stays the previous one. `entry` is what is written where the kept one cannot be read.

        Raises:
            StoreError: it cannot be written.
        """
        name = entry.spec.name
        kept = self._former(name) or msgspec.structs.replace(entry, serial=self._next_serial())
        spec = msgspec.structs.replace(kept.spec, **changes)
        amended = msgspec.structs.replace(kept, spec=spec)
        return Unfinished(self._write(amended), self._path(name, _PRESENT))

    def _former(self, name: str) -> Entry | None:
        present = self._path(name, _PRESENT)
        return self._read(present, []) if present.exists() else None

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _write(self, entry: Entry) -> Path:
        unfinished = self._models / f"{secrets.token_hex(8)}{UNFINISHED}"
        try:
            with open(unfinished, "xb", opener=open_private) as file:
                file.write(encode(entry))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise StoreError(
                f"the registration of model {entry.spec.name} cannot be kept: {unfinished}: {error.strerror}. Make "
                "room or mend the state directory, or start the daemon with --ephemeral to keep nothing."
            ) from error
        return unfinished

    def remove(self, name: str) -> None:
        """Forget a model.

        Raises:
            StoreError: its files cannot be removed.
        """
        try:
            for path in self.files_of(name):
                path.unlink(missing_ok=True)
            sync_folder(self._models)
        except OSError as error:
            raise StoreError(
                f"model {name} is not served any more, but will be again after the next start of the daemon: its "
                f"file cannot be removed: {error}"
            ) from error

    def files_of(self, name: str) -> list[Path]:
        """Return where a model lies, and what it has replaced, if they are kept."""
        return [self._path(name, suffix) for suffix in (_PRESENT, _PREVIOUS)]

    def _path(self, name: str, suffix: str) -> Path:
        return self._models / f"{name}{suffix}"

    def _read(self, path: Path, problems: list[str]) -> Entry | None:
        try:
            return _load(path)
        except ForeignEntry as error:
            problems.append(
                f"the kept registration {path.name} was written by a newer version of pytriton-daemon: {error}. It "
                f"stays where it is ({path}), its model is not served: start that version, or register the model anew"
            )
            return None
        except OSError as error:
            # The disk's fault, or too many open files: the next time it may be sound.
            problems.append(
                f"the kept registration {path.name} cannot be read: {error.strerror}. It stays where it is ({path})"
            )
            return None
        except DamagedEntry as error:
            aside = self._set_aside / f"{path.name}.{secrets.token_hex(4)}"
            try:
                path.rename(aside)
            except OSError:  # it stays where it is then, and is found again
                aside = path
            problems.append(
                f"the kept registration {path.name} cannot be used: {error}; see {aside}"
            )
            return None


def _load(path: Path) -> Entry:
    """Return the entry that a file is to hold; raises OSError, DamagedEntry."""
    entry = decode(path.read_bytes())
    if entry.spec.name != path.name[: -len(path.suffix)]:
        raise DamagedEntry(f"it holds the model {entry.spec.name!r}")
    return entry


def check(folder: Path, names: Sequence[str]) -> None:
    """See that a store in use has these models; nothing is changed.

    Raises:
        StoreError: one is missing or damaged, or the folder may be written by others.
    """
    models = folder / "models"
    try:
        for path in (folder, models):
            _make_private(path)
        for name in names:
            decode((models / f"{name}{_PRESENT}").read_bytes())
    except (OSError, DamagedEntry) as error:
        raise StoreError(
            f"the state directory {folder} does not have all that is served: {error}. Register the model anew, with "
            "replace=True (--replace)"
        ) from error


class Unfinished:
    """A registration that has been written, but does not count yet.

    Args:
        path: where it lies
        present: where it is to lie
        previous: where what lies there now is to lie then; None: nowhere
    """

    def __init__(self, path: Path, present: Path, previous: Path | None = None) -> None:
        self._path = path
        self._present = present
        self._previous = previous

    def finish(self) -> None:
        """Let it count from now on.

        Raises:
            StoreError: the disk refuses.
        """
        try:
            if self._previous is not None and self._present.exists():
                # The old one has both names for a moment: a crash loses neither.
                linked = self._path.with_name(f"{self._path.stem}-previous{UNFINISHED}")
                os.link(self._present, linked)
                os.replace(linked, self._previous)
            os.replace(self._path, self._present)
            sync_folder(self._present.parent)
        except OSError as error:
            raise StoreError(f"{self._present} cannot be written: {error.strerror}") from error

    def discard(self) -> None:
        """Forget it."""
        with contextlib.suppress(OSError):  # what is left is removed at the next start
            self._path.unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Make the folder for this user alone, or see that it is.

    Raises:
        StoreError: it is another user's, or others may use it: what is in it is run.
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
        return
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise StoreError(
            f"the state directory {folder} belongs to user {info.st_uid}, not to this one ({os.geteuid()}): what "
            "is in it would be run. Choose another one with --state-dir."
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise StoreError(
            f"others than its owner may write to the state directory {folder}, and what is in it is run. Make it "
            f"private (chmod 700 {folder}), or choose another one with --state-dir."
        )


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
