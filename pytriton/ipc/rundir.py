"""The runtime directory: where one daemon's sockets, logs, pid and settings lie, and how others find it.

Layout (all names are short because a unix socket's path has at most 107 bytes)::

    <runtime directory>/
      control.sock       ZeroMQ ROUTER of the dispatcher
      daemon.lock        locked (flock) by the running dispatcher; holds its pid as text
      access_token       0600: what Triton's restricted endpoints ask for (ipc/access.py)
      l/<worker>.sock    the lane listener of one worker
      models/            tritonserver's model repository: NAME/VERSION/ (empty folders)
      backends/          tritonserver's backend directory: the proxy
      lib/               holds `pytriton` only: what workers put first on their sys.path
      logs/              daemon.log and model-NAME.log: JSON lines, rotated

The directory is 0700. When a group of users may control the daemon (`control_group`), it is 0750, control.sock
0660 and daemon.lock 0640 with that group: what a client needs to find the daemon and to talk to it. All else
is for the owner alone always, folders 0700 and files 0600.
"""

from __future__ import annotations

import fcntl
import grp
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

ENV_RUNTIME_DIR = "PYTRITON_DAEMON_RUNTIME_DIR"
#: sun_path holds 108 bytes with its terminating NUL (unix(7)).
MAX_SOCKET_PATH = 107


class RuntimeDirError(Exception):
    """The runtime directory cannot be used; the text says why and what to do."""


def default_runtime_dir() -> Path:
    """Return the runtime directory of this user: the first that applies of the documented places.

    `$PYTRITON_DAEMON_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/pytriton-daemon`, `/run/pytriton-daemon` for
    root, `<temp folder>/pytriton-daemon-<uid>`.
    """
    explicit = os.environ.get(ENV_RUNTIME_DIR)
    return Path(explicit).expanduser().absolute() if explicit else _usual_runtime_dir()


def default_state_dir(runtime_dir: Path) -> Path:
    """Return where a daemon keeps its registrations: daemons with runtime directories of their own do not meet.

    `/var/lib/pytriton-daemon` for root, else `pytriton-daemon` in `$XDG_STATE_HOME` or `~/.local/state`; with
    another runtime directory than the usual one, `state` inside it.
    """
    if runtime_dir != _usual_runtime_dir():
        return runtime_dir / "state"
    if os.geteuid() == 0:
        return Path("/var/lib/pytriton-daemon")
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "pytriton-daemon"


def _usual_runtime_dir() -> Path:
    xdg = os.environ.get("XDG_RUNTIME_DIR")
    if xdg and os.path.isdir(xdg):
        return Path(xdg) / "pytriton-daemon"
    if os.geteuid() == 0:
        return Path("/run/pytriton-daemon")
    return Path(tempfile.gettempdir()) / f"pytriton-daemon-{os.geteuid()}"


def share(path: Path, group: str | None) -> None:
    """Make a folder, a socket or a file its owner's alone, or let the members of a group use it.

    Using means to enter a folder, to connect to a socket, to read a file.

    Raises:
        RuntimeDirError: there is no such group, or this user may not give it the path.
    """
    mode = os.lstat(path).st_mode
    own, shared = (
        (0o700, 0o750) if stat.S_ISDIR(mode) else (0o600, 0o660 if stat.S_ISSOCK(mode) else 0o640)
    )
    if group is None:
        os.chmod(path, own)
        return
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
        os.chmod(path, shared)
    except KeyError:
        raise RuntimeDirError(
            f"control_group: there is no group {group!r} on this machine (`getent group` lists them). "
            f"Make it with `groupadd {group}`, or name another."
        ) from None
    except PermissionError as error:
        raise RuntimeDirError(
            f"control_group: {path} cannot be given to the group {group!r}: {error.strerror}. The user that the "
            f"daemon runs as ({os.geteuid()}) has to be a member of the group, since before it logged in or the "
            "service was started."
        ) from error


@dataclass(frozen=True)
class RuntimeDir:
    """Paths inside one runtime directory."""

    path: Path

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def control_endpoint(self) -> str:
        """ZeroMQ endpoint of the dispatcher."""
        return f"ipc://{self.control_socket}"

    @property
    def lock_file(self) -> Path:
        return self.path / "daemon.lock"

    @property
    def access_token_file(self) -> Path:
        return self.path / "access_token"

    @property
    def lanes(self) -> Path:
        return self.path / "l"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def backends(self) -> Path:
        return self.path / "backends"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log_file(self, model: str | None = None) -> Path:
        """The JSON-lines log of a model, or of the daemon itself."""
        return self.logs / ("daemon.log" if model is None else f"model-{model}.log")

    def lane_socket(self, worker: str) -> Path:
        return self.lanes / f"{worker}.sock"

    def create(self, group: str | None = None) -> None:
        """Make the directory, private to its owner, and its folders; one that a daemon holds is left alone.

        Args:
            group: name of a group whose members may find and control the daemon, too

        Raises:
            RuntimeDirError: it is not ours, not private, not writable, its path is too long for
                a socket, or it cannot be given to the group.
        """
        longest = len(os.fsencode(str(self.lane_socket("w" + "9" * 8))))
        if longest > MAX_SOCKET_PATH:
            raise RuntimeDirError(
                f"the runtime directory {self.path} is {longest - MAX_SOCKET_PATH} bytes too long: the "
                f"sockets in it would pass the {MAX_SOCKET_PATH} bytes that a unix socket's path may have. "
                f"Choose a shorter one with --runtime-dir or {ENV_RUNTIME_DIR}."
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_ours()
            if self.running_pid() is not None:
                return  # its daemon has seen to all this, and would lose what is closed now
            self._make_private()
            for folder in (self.lanes, self.models, self.backends, self.logs):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RuntimeDirError(
                f"cannot use the runtime directory {self.path}: {error}. Choose another one with "
                f"--runtime-dir or {ENV_RUNTIME_DIR}."
            ) from error
        if group is not None:  # last: nothing in it can be reached any more but what is meant to be
            share(self.path, group)

    def _check_ours(self) -> None:
        info = os.lstat(self.path)
        if not stat.S_ISDIR(info.st_mode):
            raise RuntimeDirError(f"the runtime directory {self.path} is not a directory.")
        if info.st_uid != os.geteuid():
            raise RuntimeDirError(
                f"the runtime directory {self.path} belongs to user {info.st_uid}, not to this one "
                f"({os.geteuid()}). Choose another one with --runtime-dir or {ENV_RUNTIME_DIR}."
            )

    def _make_private(self) -> None:
        """Close the directory, then all that lies in it: files of an earlier start, or of a careless hand."""
        if stat.S_IMODE(os.lstat(self.path).st_mode) & 0o077:
            os.chmod(self.path, 0o700)
        for entry in os.scandir(self.path):
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            if mode & 0o077 and not entry.is_symlink():
                os.chmod(entry.path, mode & 0o700)

    def access_token(self) -> str | None:
        """Return the running daemon's token for Triton's restricted endpoints; None when it has none."""
        try:
            return self.access_token_file.read_text()
        except FileNotFoundError:
            return None

    def running_pid(self) -> int | None:
        """Return the pid of the daemon that holds this directory, or None when none runs.

        The lock, not the pid's existence, is the proof: a pid may have been given to another
        process.
        """
        try:
            with open(self.lock_file) as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    text = lock.read().strip()
                    return int(text) if text.isdecimal() else None
        except FileNotFoundError:
            return None
        return None
