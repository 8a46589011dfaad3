"""The cache directory of a user, and the atomic creation of its entries.

```
<cache folder>/
  server/nvidia-pytriton-0.7.0-21f063ff93bb/    tritonserver and its libraries, see wheel.py
  native-proxy/5a6b7c8d9e0f1a2b/                the compiled proxy, see compiled_proxy.py
  proxy-env/cp311-1f2e3d4c/                     the Python proxy's environment, if needed, see proxy_env.py
  environments/requirements-0f1e2d3c4b5a6978/   environments of workers, see pytriton/_register/environments.py
  archives/words-2b3c4d5e6f7a8b9c/              unpacked model archives, see pytriton/formats/torchserve.py
    */.NAME.lock                                  held while NAME is being created
    */.NAME.tmp-*                                 incomplete; the holder of the lock may delete it
```

An entry is created under a temporary name and then renamed, so that it is either complete or absent, even
if a start is killed or two starts run concurrently.
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

#: Names the cache directory; overrides XDG_CACHE_HOME.
CACHE_DIR_VARIABLE = "PYTRITON_DAEMON_CACHE_DIR"
#: Error numbers of a full disk.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
#: Matches the beginning of an OSError's text.
_ERRNO = re.compile(r"\[Errno (\d+)\]")

Progress = Callable[[str], None]


class ServerRuntimeError(Exception):
    """tritonserver or the proxy's Python environment cannot be found, created or used.

    The text says what is wrong, where, and what to do; it can be shown to users as it is.
    """


def cache_dir(explicit: Path | None = None) -> Path:
    """Return the cache directory as an absolute path, without creating it.

    It is `explicit`, else $PYTRITON_DAEMON_CACHE_DIR, else $XDG_CACHE_HOME/pytriton-daemon, else
    ~/.cache/pytriton-daemon. A relative XDG_CACHE_HOME is ignored, as its specification requires
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
            f"no home directory for the cache ({error}); set {CACHE_DIR_VARIABLE} to a directory "
            "that this user can write to"
        ) from error


def publish(
    target: Path,
    build: Callable[[Path], None],
    is_whole: Callable[[Path], bool],
    progress: Progress,
) -> None:
    """Create the directory `target` atomically, unless it exists and is complete.

    Args:
        target: the directory to create.
        build: fills an empty directory on the same file system as `target`.
        is_whole: returns True if a directory is complete; called before and after locking.
        progress: gets a line if another process is creating the directory.

    Raises:
        ServerRuntimeError: the cache cannot be written, the disk is full, or `build` raised it.
    """
    try:
        if is_whole(target):  # the usual case; needs no lock, so a read-only cache works
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
    import filelock  # takes 10 ms, and is rarely needed

    lock = filelock.FileLock(str(target.parent / f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        progress(f"another process is creating {target}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    prefix = f".{target.name}.tmp-"
    # This process holds the lock, so the processes that created these drafts have exited.
    for stale in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        content = draft / "content"
        content.mkdir()  # not the mkdtemp directory itself, whose mode is 0700 regardless of the umask
        build(content)
        if target.is_symlink() or target.exists():  # it exists, but is incomplete
            target.rename(draft / "replaced")
        content.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def explain_os_error(error: OSError, where: Path, folder: str = CACHE_DIR_VARIABLE) -> str:
    """Explain a file system error and how to fix it, in one sentence. `folder` is the setting to change."""
    elsewhere = f"set {folder} to a directory with free space that this user can write to"
    error = _first_of(error)
    place = error.filename or where
    if error.errno in NO_ROOM:
        return f"no space left on the disk while writing {place}; free some space there, or {elsewhere}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"this user has no access to {place} ({error.strerror}); {elsewhere}"
    return f"cannot use {place} ({error.strerror or error}); fix that, or {elsewhere}"


def _first_of(error: OSError) -> OSError:
    """Return the first of the errors that `shutil.copytree` collects, each as (source, target, text)."""
    if not isinstance(error, shutil.Error) or not isinstance(error.args[0], list):
        return error
    _, place, text = error.args[0][0]
    number = _ERRNO.match(str(text))
    if number is None:
        return OSError(0, str(text), str(place))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(place))
