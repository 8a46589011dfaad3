"""The per-user cache folder and the one way in which anything gets into it.

```
<cache folder>/
  server/nvidia-pytriton-0.7.0-21f063ff93bb/    tritonserver and its libraries, see wheel.py
  native-proxy/5a6b7c8d9e0f1a2b/                the compiled proxy, see compiled_proxy.py
  proxy-env/cp311-1f2e3d4c/                     the Python proxy's environment, if needed, see proxy_env.py
  environments/requirements-0f1e2d3c4b5a6978/   environments of workers, see pytriton/_register/environments.py
  */.NAME.lock                                  held while NAME is being made
  */.NAME.tmp-*                                 half-made; whoever holds the lock may delete it
```

An entry is made beside its place and then renamed there, so it is either whole or not there at
all: neither a killed start nor two starts at once can leave a half-made one for a later start to
trust.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

#: Names the cache folder; wins over XDG_CACHE_HOME.
CACHE_DIR_VARIABLE = "PYTRITON_DAEMON_CACHE_DIR"
#: What a disk says that has no room.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: Begins the text of an OSError.
_ERRNO = re.compile(r"\[Errno (\d+)\]")

Progress = Callable[[str], None]


class ServerRuntimeError(Exception):
    """tritonserver or the proxy's Python environment cannot be found, made or used.

    The text says what is wrong, where, and what to do about it; it is meant to be shown as it is.
    """


def cache_dir(explicit: Path | None = None) -> Path:
    """Return the cache folder as an absolute path, without making it.

    `explicit`, else $PYTRITON_DAEMON_CACHE_DIR, else $XDG_CACHE_HOME/pytriton-daemon, else
    ~/.cache/pytriton-daemon. A relative XDG_CACHE_HOME is ignored, as its specification asks
    (https://specifications.freedesktop.org/basedir-spec/latest/).
    """
    if explicit is not None:
        return explicit.expanduser().absolute()
    if os.environ.get(CACHE_DIR_VARIABLE):
        return Path(os.environ[CACHE_DIR_VARIABLE]).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / "pytriton-daemon"
    try:
        return Path.home() / ".cache" / "pytriton-daemon"
    except RuntimeError as error:  # no HOME and no entry for this uid, as in some containers
        raise ServerRuntimeError(
            f"no home folder to keep a cache in ({error}); set {CACHE_DIR_VARIABLE} to a folder "
            "that this user can write"
        ) from error


def publish(
    target: Path,
    build: Callable[[Path], None],
    is_whole: Callable[[Path], bool],
    progress: Progress,
) -> None:
    """Make `target` (a folder) with `build` unless it is there and whole; do it once, atomically.

    Args:
        target: where the folder is to be.
        build: fills the empty folder that it is given (same filesystem as `target`).
        is_whole: tells whether the folder can be trusted; asked before and after locking.
        progress: is told when another process is already at it.

    Raises:
        ServerRuntimeError: the cache cannot be written, the disk is full, or `build` raised it.
    """
    try:
        if is_whole(target):  # the usual case; needs no lock, so a read-only cache serves
            with contextlib.suppress(OSError):
                os.utime(target)  # when it was last used (cache_usage.py)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target, progress):
            if not is_whole(target):
                _build_and_rename(target, build)
    except OSError as error:
        raise ServerRuntimeError(explain_os_error(error, target.parent)) from error


@contextlib.contextmanager
def _lock(target: Path, progress: Progress) -> Iterator[None]:
    import filelock  # takes 10 ms, and the first daemon makes what all others find

    lock = filelock.FileLock(str(target.parent / f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"another process is making {target}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    prefix = f".{target.name}.tmp-"
    for stale in target.parent.glob(f"{prefix}*"):  # we hold the lock: its maker is gone
        shutil.rmtree(stale, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        content = draft / "content"
        content.mkdir()  # not the mkdtemp folder itself, whose mode is 0700 whatever the umask
        build(content)
        if target.is_symlink() or target.exists():  # there, but not whole
            target.rename(draft / "replaced")
        content.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def explain_os_error(error: OSError, where: Path, folder: str = CACHE_DIR_VARIABLE) -> str:
    """Say in one sentence what the filesystem refused, and the mend; `folder`: what names another one."""
    elsewhere = f"set {folder} to a folder with room that this user can write"
    error = _first_of(error)
    place = error.filename or where
    if error.errno in NO_ROOM:
        return (
            f"no room left on the disk while writing {place}; free some space there, or {elsewhere}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"this user may not use {place} ({error.strerror}); {elsewhere}"
    return f"cannot use {place} ({error.strerror or error}); mend that, or {elsewhere}"


def _first_of(error: OSError) -> OSError:
    """Return the first failure of those that `shutil.copytree` has put together: (source, place, text) of each."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    _, place, text = error.args[0][0]
    number = _ERRNO.match(str(text))
    if number is None:
        return OSError(0, str(text), str(place))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(place))
