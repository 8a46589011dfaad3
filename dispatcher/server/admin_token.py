"""The token that guards Triton's administrative endpoints: made, published to our clients, hidden from others.

tritonserver takes the token on its command line only, which every user of the machine can read
(/proc/PID/cmdline). So it is blanked out there once tritonserver has read it; docs/operations/security.md
says what window remains.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol.access import ACCESS_HEADER
from pytriton._protocol.files.rundir import RuntimeDir, RuntimeDirError

_log = structlog.get_logger(__name__)

#: What stands where the token was.
_HIDDEN = "***"


def with_token(config: DaemonConfig) -> DaemonConfig:
    """Return the settings with an access token: a fresh random one when none is set and one is needed."""
    if config.access_token is not None or not config.restricted_endpoints:
        return config
    return msgspec.structs.replace(config, access_token=secrets.token_urlsafe(32))


def restrictions(config: DaemonConfig) -> dict[str, list[str]]:
    """Return tritonserver's options that restrict the endpoints; the token is in them."""
    if not config.restricted_endpoints or config.access_token is None:
        return {}
    value = f"{','.join(config.restricted_endpoints)}:{ACCESS_HEADER}={config.access_token}"
    options = {}
    if config.allow_http:
        options["http-restricted-api"] = [value]
    if config.allow_grpc:
        options["grpc-restricted-protocol"] = [value]
    return options


@contextmanager
def published(config: DaemonConfig, rundir: RuntimeDir) -> Iterator[None]:
    """Keep the token in the runtime directory for our own clients, readable by this user alone.

    Raises:
        RuntimeDirError: it cannot be written.
    """
    path = rundir.access_token_file
    try:
        if config.access_token is None or _read(path) != config.access_token:
            path.unlink(missing_ok=True)  # of a daemon that was killed
            if config.access_token is not None:
                _write_private(path, config.access_token)
    except OSError as error:
        raise RuntimeDirError(
            f"cannot keep the access token in {path}: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        # Another one is that of another daemon, which has made the directory anew after it was deleted.
        if _read(path) in (None, config.access_token):
            path.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    """Return what is in the file of this user alone; None if there is no such."""
    try:
        mode = path.stat().st_mode
        return path.read_text() if stat.S_IMODE(mode) == 0o600 else None
    except FileNotFoundError:
        return None


def _write_private(path: Path, text: str) -> None:
    # The mode comes with the file: at no moment can somebody else open it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def hide(text: str, token: str | None) -> str:
    """Return a text in which the token does not stand any more."""
    return text if token is None else text.replace(token, _HIDDEN)


def blank_out(pid: int, token: str | None) -> bool:
    """Overwrite the token in the arguments that `ps` and /proc/PID/cmdline show of a process.

    Returns whether it is gone from there. The process must have read its arguments by
    now. Best effort: the kernel may refuse (yama's ptrace_scope 2 or 3, some containers), which is
    warned of.
    Source: proc(5): fields 48 and 49 of /proc/PID/stat (arg_start, arg_end), /proc/PID/mem.
    """
    if token is None:
        return True
    try:
        _overwrite(Path(f"/proc/{pid}"), token.encode())
        if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise ValueError("it still stands there")
    except (OSError, ValueError) as error:
        _log.warning(
            "the access token could not be removed from the command line of a process: other users "
            "of this machine can read it there",
            pid=pid,
            reason=f"{type(error).__name__}: {hide(str(error), token)}",
        )
        return False
    return True


def _overwrite(proc: Path, secret: bytes) -> None:
    # The second field is the program's name in brackets, which may hold spaces and brackets.
    fields = (proc / "stat").read_text(errors="replace").rpartition(")")[2].split()
    start, end = int(fields[48 - 3]), int(fields[49 - 3])
    if not 0 < start < end:
        raise ValueError("the kernel does not tell where the arguments are")
    with open(proc / "mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        arguments = memory.read(end - start)
        at = arguments.find(secret)
        while at >= 0:
            memory.seek(start + at)
            memory.write(b"*" * len(secret))
            at = arguments.find(secret, at + len(secret))
