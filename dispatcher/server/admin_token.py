"""Access token for Triton's administrative endpoints: generating it, publishing it to our clients, and hiding it.

NVIDIA's tritonserver accepts the token only on its command line, which every user of the machine can read in
/proc/PID/cmdline. The daemon therefore overwrites it there once tritonserver has read it. docs/operations/security.md
describes the time in between.
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
from pytriton._protocol import linux
from pytriton._protocol.files.rundir import RuntimeDir, RuntimeDirError
from pytriton._protocol.parameters import ACCESS_HEADER

_log = structlog.get_logger(__name__)

#: What the token is replaced by in logs and error messages.
_HIDDEN = "***"


def with_token(config: DaemonConfig) -> DaemonConfig:
    """Return the settings with an access token. If they need a token and have none, generate a random one."""
    if config.access_token is not None or not config.restricted_endpoints:
        return config
    return msgspec.structs.replace(config, access_token=secrets.token_urlsafe(32))


def restrictions(config: DaemonConfig) -> dict[str, list[str]]:
    """Return the tritonserver options that restrict access to its endpoints. They contain the token."""
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
    """Keep the token in the runtime directory for the duration of this context. Only this user can read the file.

    Raises:
        RuntimeDirError: the file cannot be written
    """
    path = rundir.access_token_file
    try:
        if config.access_token is None or _read(path) != config.access_token:
            path.unlink(missing_ok=True)  # left by a daemon that was killed
            if config.access_token is not None:
                _write_private(path, config.access_token)
    except OSError as error:
        raise RuntimeDirError(
            f"cannot store the access token in {path}: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        # A file with another token belongs to another daemon, which has recreated a deleted runtime directory.
        if _read(path) in (None, config.access_token):
            path.unlink(missing_ok=True)


def _read(path: Path) -> str | None:
    """Return the content of a file with mode 0600; None if it does not exist or has another mode."""
    try:
        mode = path.stat().st_mode
        return path.read_text() if stat.S_IMODE(mode) == 0o600 else None
    except FileNotFoundError:
        return None


def _write_private(path: Path, text: str) -> None:
    # Create the file with its final mode, so that no other user can ever open it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def hide(text: str, token: str | None) -> str:
    """Replace the token in a text with asterisks."""
    return text if token is None else text.replace(token, _HIDDEN)


def blank_out(pid: int, token: str | None) -> bool:
    """Overwrite the token in a process's arguments, as shown by `ps` and /proc/PID/cmdline.

    The process must have read its arguments already. The kernel may refuse (with yama's ptrace_scope 2 or 3, and in
    some containers); a warning is logged then.

    Source: proc(5), on fields 48 and 49 of /proc/PID/stat (arg_start, arg_end) and on /proc/PID/mem.

    Returns:
        Whether the token is gone.
    """
    if token is None:
        return True
    try:
        _overwrite(Path(f"/proc/{pid}"), token.encode())
        if token.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            raise ValueError("it is still visible")
    except (OSError, ValueError) as error:
        _log.warning(
            "could not remove the access token from the command line of a process, where other users "
            "of this machine can read it",
            pid=pid,
            reason=f"{type(error).__name__}: {hide(str(error), token)}",
        )
        return False
    return True


def _overwrite(proc: Path, secret: bytes) -> None:
    fields = linux.stat_fields(proc / "stat")
    start, end = int(fields[48]), int(fields[49])
    if not 0 < start < end:
        raise ValueError("the kernel does not report the address of the command-line arguments")
    with open(proc / "mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        arguments = memory.read(end - start)
        at = arguments.find(secret)
        while at >= 0:
            memory.seek(start + at)
            memory.write(b"*" * len(secret))
            at = arguments.find(secret, at + len(secret))
