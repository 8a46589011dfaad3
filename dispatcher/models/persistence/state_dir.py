"""The state directory, which contains the registrations for the next start of the daemon.

Layout::

    <state directory>/
      lock                       locked (flock) by the daemon that uses it
      models/NAME.registration   one file per model
      models/NAME.previous       the registration that NAME.registration replaced, for rollback
      sizes.json                 memory used by workers at their last load, see size_store.py
      set-aside/                 damaged files, moved here for inspection; other unusable files stay in place

A file is one line of text, ``pytriton-registration 1 <sha256 of the rest>``, followed by MessagePack (`Entry`). It
is written to a temporary name, synced and renamed, so that a crash leaves either the old or the new one. The daemon
treats payloads as opaque bytes: only workers unpickle them.
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
#: Suffix of uncommitted files. The next start removes them.
UNFINISHED = ".unfinished"


class StoreError(Exception):
    """The state directory cannot be used, or a file in it cannot be written. The text says what to do."""


class DamagedEntry(Exception):
    """A file does not contain a valid registration."""


class ForeignEntry(DamagedEntry):
    """A file is intact, but was written by a newer version of pytriton-daemon."""


class Entry(msgspec.Struct, frozen=True):
    """A persisted registration.

    Attributes:
        serial: defines the order
        registered_at: seconds since the epoch
        replaces: whether it replaced a persisted entry; None if written by a version without this field
    """

    serial: int
    registered_at: float
    spec: messages.ModelSpec
    payloads: list[bytes]
    replaces: Optional[bool] = None


class Content(NamedTuple):
    """Content of a state directory: registrations in order, and one sentence about each damaged file."""

    entries: list[Entry]
    problems: list[str]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """Encode an entry as the content of its file."""
    content = _encoder.encode(entry)
    return _FORMAT + hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def decode(data: bytes) -> Entry:
    """Decode the content of a file.

    Raises:
        ForeignEntry: a newer version has written it.
        DamagedEntry: `encode` cannot have written it; the text says what is wrong.
    """
    head, newline, content = data.partition(b"\n")
    form = _FORM.match(head)
    if form is not None and newline and int(form[1]) > _OWN_FORM:
        raise ForeignEntry(
            f"its format is {int(form[1])}, but this version reads format {_OWN_FORM}"
        )
    if not head.startswith(_FORMAT) or not newline:
        raise DamagedEntry(f"it begins with {head[:40]!r}, not with {_FORMAT.decode()!r}")
    if hashlib.sha256(content).hexdigest().encode() != head[len(_FORMAT) :]:
        raise DamagedEntry("its checksum is wrong: it was damaged or truncated")
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ForeignEntry(f"this version cannot decode its content ({error})") from error


class Store:
    """The registrations in one state directory, which is locked against other daemons."""

    def __init__(self, folder: Path, lock: int | None = None) -> None:
        """Create the folder, private to its owner, and lock it. After an upgrade, `lock` is the inherited descriptor.

        Raises:
            StoreError: the folder cannot be created or written, or another daemon is using it.
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
                f"another daemon is using the state directory {folder}. Choose another one with --state-dir."
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot use the state directory {folder}: {error}. Choose another one with --state-dir, or "
                "persist nothing with --ephemeral."
            ) from error

    @property
    def lock(self) -> int:
        """The descriptor of the lock."""
        return self._lock

    def close(self) -> None:
        """Unlock the folder for other daemons."""
        os.close(self._lock)

    def read(self) -> Content:
        """Return the stored registrations, and move damaged files aside."""
        entries: list[Entry] = []
        problems: list[str] = []
        for path in sorted(self._models.iterdir()):
            if path.suffix == UNFINISHED:
                with contextlib.suppress(OSError):  # harmless leftovers
                    path.unlink()
            elif path.suffix == _PRESENT:
                entry = self._read(path, problems)
                entries.extend([] if entry is None else [entry])
        entries.sort(key=lambda entry: entry.serial)
        self._serial = max((entry.serial for entry in entries), default=0)
        return Content(entries, problems)

    def previous(self, name: str) -> Entry | None:
        """Return the entry that a persisted model replaced; None if it replaced nothing.

        Raises:
            StoreError: the file of the replaced entry is missing or cannot be read.
        """
        path = self._path(name, _PREVIOUS)
        problems: list[str] = []
        entry = self._read(path, problems) if path.exists() else None
        if problems:
            raise StoreError(problems[0])
        if entry is None and not self.is_first(name):
            raise StoreError(
                f"the previous version of model {name} cannot be restored: {path} is missing. If the file was "
                f"damaged, it was moved to {self._set_aside}. Register the model again, with replace=True (--replace)"
            )
        return entry

    def is_first(self, name: str) -> bool:
        """Return whether a persisted model is the first of its name, rather than a replacement of an earlier
        registration.

        Raises:
            StoreError: its file cannot be read.
        """
        path = self._path(name, _PRESENT)
        try:
            replaces = _load(path).replaces
        except (OSError, DamagedEntry) as error:
            raise StoreError(
                f"cannot determine whether model {name} has replaced another one: {path} cannot be read: {error}"
            ) from error
        if replaces is None:
            return not self._path(name, _PREVIOUS).exists()
        return not replaces

    def write(
        self, spec: messages.ModelSpec, payloads: Sequence[bytes], registered_at: float
    ) -> Unfinished:
        """Write a registration to a temporary file. Its `finish` commits it.

        The entry that is currently stored under this name then becomes the previous one.

        Raises:
            StoreError: the file cannot be written.
        """
        present = self._path(spec.name, _PRESENT)
        former = self._former(spec.name)
        # A replacement keeps the model's position in the order.
        serial = self._next_serial() if former is None else former.serial
        entry = Entry(serial, registered_at, spec, list(payloads), replaces=present.exists())
        return Unfinished(self._write(entry), present, self._path(spec.name, _PREVIOUS))

    def amend(self, entry: Entry, changes: Mapping[str, Any]) -> Unfinished:
        """Write a stored registration to a temporary file, with some fields of its specification changed.

        The previous entry is unaffected. `entry` is written if the stored one cannot be read.

        Raises:
            StoreError: the file cannot be written.
        """
        name = entry.spec.name
        stored = self._former(name) or msgspec.structs.replace(entry, serial=self._next_serial())
        spec = msgspec.structs.replace(stored.spec, **changes)
        amended = msgspec.structs.replace(stored, spec=spec)
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
                f"the registration of model {entry.spec.name} cannot be persisted: {unfinished}: {error.strerror}. Free "
                "disk space, repair the state directory, or start the daemon with --ephemeral to persist nothing."
            ) from error
        return unfinished

    def remove(self, name: str) -> None:
        """Delete a model.

        Raises:
            StoreError: its files cannot be removed.
        """
        try:
            for path in self.files_of(name):
                path.unlink(missing_ok=True)
            sync_folder(self._models)
        except OSError as error:
            raise StoreError(
                f"model {name} is no longer served, but the next start of the daemon will serve it again, because its "
                f"file cannot be removed: {error}"
            ) from error

    def files_of(self, name: str) -> list[Path]:
        """Return the files of a model and of the entry that it replaced, if they exist."""
        return [self._path(name, suffix) for suffix in (_PRESENT, _PREVIOUS)]

    def _path(self, name: str, suffix: str) -> Path:
        return self._models / f"{name}{suffix}"

    def _read(self, path: Path, problems: list[str]) -> Entry | None:
        try:
            return _load(path)
        except ForeignEntry as error:
            problems.append(
                f"the stored registration {path.name} was written by a newer version of pytriton-daemon: {error}. It "
                f"is left in place ({path}) and its model is not served: start that version, or register the model again"
            )
            return None
        except OSError as error:
            # A disk error, or too many open files: the file itself may be intact.
            problems.append(
                f"the stored registration {path.name} cannot be read: {error.strerror}. It is left in place ({path})"
            )
            return None
        except DamagedEntry as error:
            aside = self._set_aside / f"{path.name}.{secrets.token_hex(4)}"
            try:
                path.rename(aside)
            except OSError:  # it stays in place, and the next start finds it again
                aside = path
            problems.append(
                f"the stored registration {path.name} cannot be used: {error}; see {aside}"
            )
            return None


def _load(path: Path) -> Entry:
    """Read the entry of a file. Raises OSError, DamagedEntry."""
    entry = decode(path.read_bytes())
    if entry.spec.name != path.name[: -len(path.suffix)]:
        raise DamagedEntry(f"the file name does not match its model, {entry.spec.name!r}")
    return entry


def check(folder: Path, names: Sequence[str]) -> None:
    """Check that a store in use contains these models, without changing anything.

    Raises:
        StoreError: one is missing or damaged, or others may write to the folder.
    """
    models = folder / "models"
    try:
        for path in (folder, models):
            _make_private(path)
        for name in names:
            decode((models / f"{name}{_PRESENT}").read_bytes())
    except (OSError, DamagedEntry) as error:
        raise StoreError(
            f"the state directory {folder} is missing a served model: {error}. Register the model again, with "
            "replace=True (--replace)"
        ) from error


class Unfinished:
    """A registration that has been written but not committed.

    Args:
        path: the temporary file
        present: the file that it replaces
        previous: the new path of the replaced file; None to delete it
    """

    def __init__(self, path: Path, present: Path, previous: Path | None = None) -> None:
        self._path = path
        self._present = present
        self._previous = previous

    def finish(self) -> None:
        """Commit the registration.

        Raises:
            StoreError: a file cannot be written.
        """
        try:
            if self._previous is not None and self._present.exists():
                # The old file has both names for a moment, so a crash loses neither.
                linked = self._path.with_name(f"{self._path.stem}-previous{UNFINISHED}")
                os.link(self._present, linked)
                os.replace(linked, self._previous)
            os.replace(self._path, self._present)
            sync_folder(self._present.parent)
        except OSError as error:
            raise StoreError(f"{self._present} cannot be written: {error.strerror}") from error

    def discard(self) -> None:
        """Delete the temporary file."""
        with contextlib.suppress(OSError):  # the next start removes leftovers
            self._path.unlink(missing_ok=True)


def _make_private(folder: Path) -> None:
    """Create a private folder, or check that an existing one is private.

    Raises:
        StoreError: it belongs to another user, or others may write to it. That is unsafe, since its content is
            executed.
        OSError: it cannot be created.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
        return
    info = folder.stat()
    if info.st_uid != os.geteuid():
        raise StoreError(
            f"the state directory {folder} belongs to user {info.st_uid}, not to the current user ({os.geteuid()}), and the "
            "daemon would execute its contents. Choose another one with --state-dir."
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise StoreError(
            f"the state directory {folder} is writable by users other than its owner, and files in it are executed. Make it "
            f"private (chmod 700 {folder}), or choose another one with --state-dir."
        )


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
