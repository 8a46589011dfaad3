"""The runtime directory: one daemon's sockets, logs, pid and settings, and how clients find it.

Layout (all names are short because a unix socket's path has at most 107 bytes)::

    <runtime directory>/
      control.sock       ZeroMQ ROUTER of the dispatcher
      http.sock          the native frontend's HTTP socket for the daemon's own processes
      daemon.lock        locked (flock) by the running dispatcher; holds its pid as text
      access_token       0600: the token for Triton's restricted endpoints (_protocol/parameters.py)
      l/<worker>.sock    the lane listener of one worker
      models/            tritonserver's model repository: NAME/VERSION/ (empty folders)
      backends/          tritonserver's backend directory: the proxy
      lib/               holds `pytriton` only; workers put it first on sys.path
      shared/            memory shared by workers: its holders (_protocol/files/shared_entries.py)
      logs/              daemon.log and model-NAME.log: JSON lines, rotated

A daemon that takes over the directory deletes and recreates `l`, `models`, `backends`, `lib` and `shared`.

The directory has mode 0700. If a group of users may control the daemon (`control_group`), its mode is 0750, that of
control.sock 0660 and that of daemon.lock 0640, all with that group: clients need these to find the daemon and to talk
to it. Everything else is always private to the owner: folders 0700, files 0600.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytriton._protocol.files.private_files import files_of_others, remove

ENV_RUNTIME_DIR = "PYTRITON_DAEMON_RUNTIME_DIR"
#: Used by root's daemon and the system service: only root can create it.
_SERVICE_DIR = Path("/run/pytriton-daemon")
#: sun_path holds 108 bytes including its terminating NUL (unix(7)).
MAX_SOCKET_PATH = 107

#: Folder with the libraries for workers whose interpreter is not the daemon's.
OTHER_LIBRARIES = "lib-other"
#: Recreated by each daemon, so existing content does not matter.
_RECREATED = ("l", "models", "backends", "lib", OTHER_LIBRARIES, "proxy-python", "given", "shared")
#: Opened by the daemon: a link here would redirect it.
_NO_LINKS = ("daemon.lock", "start.json", "logs", "logs/daemon.log", "logs/startup.log")


class RuntimeDirError(Exception):
    """The runtime directory is unusable; the text says why and what to do."""


def default_runtime_dir() -> Path:
    """Return this user's default runtime directory, which is the first of these that is available:

    `$PYTRITON_DAEMON_RUNTIME_DIR`, `$XDG_RUNTIME_DIR/pytriton-daemon`, `/run/pytriton-daemon` for
    root, `<temp folder>/pytriton-daemon-<uid>`.
    """
    explicit = os.environ.get(ENV_RUNTIME_DIR)
    return Path(explicit).expanduser().absolute() if explicit else _usual_runtime_dir()


def clients_runtime_dir() -> Path:
    """Return the runtime directory where this user's clients look for a daemon by default.

    This is the user's default directory, or that of the system service if a daemon runs only there and this user can
    access it: shells of root and of the service's user have an `$XDG_RUNTIME_DIR` of their own.
    """
    usual = default_runtime_dir()
    if os.environ.get(ENV_RUNTIME_DIR) or usual == _SERVICE_DIR:
        return usual
    return _SERVICE_DIR if _has_daemon(_SERVICE_DIR) and not _has_daemon(usual) else usual


def _has_daemon(folder: Path) -> bool:
    try:
        return RuntimeDir(folder).running_pid() is not None
    except OSError:  # not accessible to this user
        return False


def default_state_dir(runtime_dir: Path) -> Path:
    """Return the default state directory for a runtime directory.

    `/var/lib/pytriton-daemon` for root, else `pytriton-daemon` in `$XDG_STATE_HOME` or `~/.local/state`. With
    a non-default runtime directory, `state` inside it.
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
        return _SERVICE_DIR
    return _temporary_runtime_dir()


def _temporary_runtime_dir() -> Path:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # no writable one, as in a service with ProtectSystem=strict
        folder = "/tmp"
    return Path(folder) / f"pytriton-daemon-{os.geteuid()}"


def share(path: Path, group: str | None) -> None:
    """Make a folder, a socket or a file private to its owner, or accessible to the members of a group.

    Access means entering a folder, connecting to a socket, or reading a file.

    Raises:
        RuntimeDirError: the group does not exist, or this user may not assign the path to it.
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
            f"control_group: group {group!r} does not exist on this machine (`getent group` lists all groups). "
            f"Create it with `groupadd {group}`, or choose another one."
        ) from None
    except PermissionError as error:
        raise RuntimeDirError(
            f"control_group: {path} cannot be assigned to the group {group!r}: {error.strerror}. The daemon's user "
            f"({os.geteuid()}) must be a member of the group. A new membership takes effect after the next login or "
            "start of the service."
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
        """Return the ZeroMQ endpoint of the dispatcher."""
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
    def library(self) -> Path:
        return self.path / "lib"

    @property
    def shared(self) -> Path:
        return self.path / "shared"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log_file(self, model: str | None = None) -> Path:
        """Return the path of the JSON-lines log of a model, or of the daemon itself."""
        return self.logs / ("daemon.log" if model is None else f"model-{model}.log")

    def access_log_file(self, model: str) -> Path:
        """Return the path of a model's access log (JSON lines), which exists only if enabled."""
        return self.logs / f"access-{model}.log"

    def lane_socket(self, worker: str) -> Path:
        return self.lanes / f"{worker}.sock"

    def create(self, group: str | None = None) -> None:
        """Create the directory and its folders, private to the owner. Do nothing if a daemon is running in it.

        Args:
            group: name of a group whose members may also find and control the daemon

        Raises:
            RuntimeDirError: it or its content is owned by another user or unsafe, it is not writable, its
                path is too long for a socket, or it cannot be assigned to the group.
        """
        longest = len(os.fsencode(str(self.lane_socket("w" + "9" * 8))))
        if longest > MAX_SOCKET_PATH:
            raise RuntimeDirError(
                f"the path of the runtime directory, {self.path}, is {longest - MAX_SOCKET_PATH} bytes too long: the "
                f"paths of unix sockets in it would exceed the limit of {MAX_SOCKET_PATH} bytes. "
                f"Choose a shorter one with --runtime-dir or {ENV_RUNTIME_DIR}."
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._refuse_others_folder()
            if self.running_pid() is not None:
                return  # the running daemon has set it up; restricting it again would lock out the control group
            self._make_private()
            self._make_folders()
        except OSError as error:
            raise RuntimeDirError(
                f"cannot use the runtime directory {self.path}: {error}. Choose another one with "
                f"--runtime-dir or {ENV_RUNTIME_DIR}."
            ) from error
        if group is not None:  # last: by now, only the intended parts are accessible
            share(self.path, group)

    def check(self) -> None:
        """Check that the existing directory and its content are usable, without changing anything.

        Raises:
            RuntimeDirError: it or its content is owned by another user or unsafe.
            OSError: it cannot be read.
        """
        self._refuse_others_folder()
        if stat.S_IMODE(self._info().st_mode) & 0o022:
            self._refuse_if_used()
        self._refuse_files_of_others()

    def movable_at(self) -> Path | None:
        """Return a parent folder in which other users could rename this directory; None if there is none."""
        for parent in self.path.resolve().parents:
            with contextlib.suppress(OSError):
                mode = parent.stat().st_mode
                if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                    return parent
        return None

    def _info(self) -> os.stat_result:
        """Return the stat result of the directory. Follows a link only if systemd created it for DynamicUser=."""
        info = os.lstat(self.path)
        is_systemds = stat.S_ISLNK(info.st_mode) and info.st_uid == 0
        if is_systemds and os.readlink(self.path) == f"private/{self.path.name}":
            return os.stat(self.path)
        return info

    def _refuse_others_folder(self) -> None:
        info = self._info()
        if not stat.S_ISDIR(info.st_mode):
            raise RuntimeDirError(f"the runtime directory {self.path} is not a directory.")
        if info.st_uid != os.geteuid():
            raise RuntimeDirError(
                f"the runtime directory {self.path} belongs to user {info.st_uid}, not to the current user "
                f"({os.geteuid()}). Choose another one with --runtime-dir or {ENV_RUNTIME_DIR}."
            )

    def _make_private(self) -> None:
        """Restrict access to the directory and to the files that an earlier start or another program has left in it."""
        self.check()
        if stat.S_IMODE(self._info().st_mode) & 0o077:
            writable = stat.S_IMODE(self._info().st_mode) & 0o022
            os.chmod(self.path, 0o700)
            if writable:  # something may have been added between the check and the chmod
                self._refuse_if_used()
        for entry in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):  # a daemon that is starting may clear it
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if mode & 0o077 and not entry.is_symlink():
                    os.chmod(entry.path, mode & 0o700)

    def _refuse_if_used(self) -> None:
        """Refuse a non-empty directory that other users can write to, since they may have created its content."""
        if any(self.path.iterdir()):
            raise RuntimeDirError(
                f"the runtime directory {self.path} is writable by other users, and the daemon would execute "
                "files in it that they may have put there. Choose a new folder inside it "
                f"(--runtime-dir {self.path / 'pytriton-daemon'}): it is created for this user only."
            )

    def _refuse_files_of_others(self) -> None:
        theirs = files_of_others(self.path, passing_over=frozenset(_RECREATED))
        if theirs:
            raise RuntimeDirError(
                f"the runtime directory {self.path} holds {theirs[0].relative_to(self.path)}, which belongs to user "
                f"{os.lstat(theirs[0]).st_uid}, not to the current user ({os.geteuid()}). Remove it if you know where it comes "
                f"from, or choose another directory with --runtime-dir or {ENV_RUNTIME_DIR}."
            )
        links = [name for name in _NO_LINKS if (self.path / name).is_symlink()]
        if links:
            raise RuntimeDirError(
                f"{self.path / links[0]} is a link (to {os.readlink(self.path / links[0])}), and links are not "
                "followed in a runtime directory. Remove it."
            )

    def _make_folders(self) -> None:
        for folder in (self.lanes, self.models, self.backends, self.shared, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)

    def clear(self) -> None:
        """Remove an earlier daemon's files that this daemon will recreate. The caller must hold the lock.

        Raises:
            RuntimeDirError: a file cannot be removed.
        """
        try:
            for name in (*_RECREATED, self.control_socket.name):
                remove(self.path / name)
            self._make_folders()
        except OSError as error:
            raise RuntimeDirError(
                f"the runtime directory {self.path} cannot be cleared of an earlier daemon's files: {error}. "
                f"Remove them, or choose another one with --runtime-dir or {ENV_RUNTIME_DIR}."
            ) from error

    def access_token(self) -> str | None:
        """Return the access token for Triton's restricted endpoints; None if the running daemon has no token."""
        try:
            return self.access_token_file.read_text()
        except FileNotFoundError:
            return None

    def running_pid(self) -> int | None:
        """Return the pid of the daemon that is using this directory, or None if none is running.

        Relies on the lock, not on the pid's existence: the pid may have been reused by another
        process.

        Raises:
            OSError: the pid cannot be determined, or the directory should be this user's but belongs to another user.
        """
        self._refuse_lookalike()
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

    def _refuse_lookalike(self) -> None:
        """Refuse a directory in /tmp that another user has created under this name to receive clients' callables."""
        if self.path != _temporary_runtime_dir():
            return
        try:
            owner = self._info().st_uid
        except FileNotFoundError:
            return
        if owner != os.geteuid():
            raise PermissionError(
                errno.EPERM, f"it belongs to user {owner}, not to the current user", str(self.path)
            )
