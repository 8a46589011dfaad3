"""The actors beside the controller: a holder for each instance, and one on each node that owns the daemon there.

They are plain classes; the controller makes actors of them, with the resources and the place that it wants.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.registration_digest import registration_digest
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError, PyTritonDaemonError
from pytriton.fleet.canary_analysis import Seen, seen_of
from pytriton.fleet.on_ray import import_ray
from pytriton.fleet.on_ray.environments import Environments, registered_as
from pytriton.fleet.on_ray.runtime_env import digest_with, split

#: In a runtime directory: locked by the actor that owns the daemon.
_OWNER = "fleet.lock"
_START_S = 300.0
#: Until a daemon that did not start is started again: twice as long each time.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_ANSWER_S = 30.0
_RAYS = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


class Holder:
    """Holds Ray's resources for one instance, where Ray has placed it; the daemon there runs the instance."""

    def where(self) -> tuple[str, list[str]]:
        """Return the node's id and the GPUs that Ray has given."""
        ray = import_ray()
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return ray.get_runtime_context().get_node_id(), [str(one) for one in gpus]


class NodeActor:
    """Owns the daemon of one node: starts it, or takes the one that runs.

    Args:
        runtime_dir: of the daemon
        flags: of `pytriton-daemon start`
        holders: the beginning of the names of the holders of environments on this node
        node: its id
        ray: Ray, or what does as it does
    """

    def __init__(
        self, runtime_dir: str, flags: Sequence[str], holders: str, node: str, ray: Any = None
    ) -> None:
        self._runtime_dir = runtime_dir
        self._flags = list(flags)
        self._stopped = False
        #: Held while a daemon is started, or stopped.
        self._starting = threading.Lock()
        self._ray = import_ray() if ray is None else ray
        #: A descriptor, for as long as this process lives.
        self._owner: Optional[int] = None
        #: The key of registrations, model -> (digest, instances), and the keys of the environments that they need. One
        #: value: looks may run at the same time.
        self._kept: tuple[str, dict[str, tuple[str, int]], set[str]] = "", {}, set()
        self._environments = Environments(holders, node, self._ray)
        #: None before the first look: an actor that cannot be made is not made again, one that fails is asked again.
        self._client: Optional[DaemonClient] = None
        #: Why the daemon did not start, until when it is not tried again, and how long that is.
        self._failed: tuple[str, float, float] = "", 0.0, 0.0

    def _connected(self) -> DaemonClient:
        if self._owner is None:
            _make(Path(self._runtime_dir))
            self._owner = _owner_of(Path(self._runtime_dir))
        try:
            return connect(self._runtime_dir, _ANSWER_S)
        except DaemonNotRunningError:
            pass
        with self._starting:
            if self._stopped:  # a look that was under way must not start it again
                raise PyTritonDaemonError("the fleet is being stopped")
            why, until, pause = self._failed
            if time.monotonic() < until:
                raise PyTritonDaemonError(why)
            try:
                client = self._started()
            except PyTritonDaemonError as error:
                # Its port may be taken: to try that costs seconds of a processor.
                pause = min(pause * 2 or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                self._failed = str(error), time.monotonic() + pause, pause
                raise
            self._failed = "", 0.0, 0.0
            return client

    def _started(self) -> DaemonClient:
        with suppress(DaemonNotRunningError):  # another look has started it
            return connect(self._runtime_dir, _ANSWER_S)
        left = self._left_here()
        if left is not None:
            return left
        command = [sys.executable, "-m", "pytriton._cli", "start", "--detach", "--ephemeral"]
        command += ["--runtime-dir", self._runtime_dir, *self._flags]
        # What Ray sets for this actor, which holds no GPU, is not for a daemon that outlives it.
        env = {key: value for key, value in os.environ.items() if not key.startswith(_RAYS)}
        started = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=_START_S, check=False
        )
        if started.returncode != 0:
            raise PyTritonDaemonError(
                f"the daemon in {self._runtime_dir} did not start: {started.stderr.strip()[-2000:]}"
            )
        return connect(self._runtime_dir, _ANSWER_S)

    def _daemon(self) -> DaemonClient:
        """Return the client of the daemon, which is started where none has been yet."""
        if self._client is None:
            self._client = self._connected()
        return self._client

    def _left_here(self) -> Optional[DaemonClient]:
        """Take over what a former node of Ray on this machine has left: it serves, and has the ports and the GPUs."""
        own = Path(self._runtime_dir)
        named = re.compile(re.escape(own.name[:-8]) + "[0-9a-f]{8}")
        if not named.fullmatch(own.name):  # not by `Cluster`, which names it after the node
            return None
        alive = {one["NodeID"][:8] for one in self._ray.nodes() if one["Alive"]}
        for other in sorted(own.parent.iterdir()):
            if not named.fullmatch(other.name) or other.name[-8:] in alive or other == own:
                continue
            if not _is_own(other):
                continue
            owner = _owner_of(other)
            if owner is None:
                continue
            with suppress(DaemonNotRunningError):
                client = connect(str(other), _ANSWER_S)
                self._runtime_dir, self._owner = str(other), owner
                return client
            os.close(owner)
        return None

    def look(
        self, known: str = "", flags: Optional[Sequence[str]] = None
    ) -> tuple[bytes, str, Optional[bytes]]:
        """Return the daemon's status, and what a fleet goes by, unless that is known; starts the daemon again.

        The status changes with each batch, and is for people: it stays encoded. What a fleet goes by has a key.

        Args:
            known: the key of what the caller has
            flags: as for the actor itself; for a daemon that is started from now on

        Returns:
            the status, the key, and (status without what changes all the time, model -> (digest, instances))
        """
        if flags is not None and list(flags) != self._flags:
            self._flags, self._failed = list(flags), ("", 0.0, 0.0)
        mark = self._environments.mark()
        state, kept, needed = self._kept
        client = self._daemon()
        # The status comes last: what counts as placed is in it.
        try:
            changed, status = client.changed_registrations(state), client.status()
        except DaemonNotRunningError:
            client = self._client = self._connected()
            changed, status = client.changed_registrations(state), client.status()
        if changed is not None:
            known_as = [(one.spec, *registered_as(one)) for one in changed.registrations]
            # One whose environment Ray may have removed is to be registered anew.
            kept = {
                spec.name: (digest if self._environments.has(key) else "", spec.instances)
                for spec, digest, key in known_as
            }
            needed = {key for _, _, key in known_as if key}
            self._kept = changed.state, kept, needed
        self._environments.keep(needed, mark)
        facts = msgspec.msgpack.encode((_lasting(status), kept))
        key = hashlib.sha256(facts).hexdigest()[:16]
        return msgspec.msgpack.encode(status), key, None if key == known else facts

    def register(
        self,
        message: bytes,
        payloads: Sequence[bytes],
        instances: int,
        devices: Sequence[str],
        replace: bool,
        digest: str,
        environment: bytes = b"",
    ) -> None:
        """Have the daemon serve a model with so many instances, in its environment if it has one.

        Raises:
            PyTritonDaemonError: what has come is not what was registered, or Ray could not make the environment.
        """
        spec = msgspec.msgpack.decode(message, type=messages.ModelSpec)
        if digest_with(registration_digest(spec, payloads), environment) != digest:
            raise PyTritonDaemonError(f"model {spec.name!r} was damaged on its way to this node")
        spec = msgspec.structs.replace(spec, instances=instances, devices=list(devices))
        callables, packages = split(payloads, environment)
        around: AbstractContextManager[messages.ModelSpec] = nullcontext(spec)
        if environment:
            around = self._environments.made(spec, environment, packages, digest)
        with around as inside:
            self._daemon().register_prepared(messages.Register(inside, replace=replace), callables)

    def seen(self, model: str) -> Seen:
        """Return what the daemon has counted of a model."""
        return seen_of(self._daemon().figures(), model)

    def scale(self, model: str, instances: int) -> None:
        """Have it serve another number of instances."""
        self._daemon().scale_prepared(messages.Scale(model, instances))

    def unregister(self, model: str) -> None:
        """Have it serve a model no more; one that is gone already is as it should be."""
        try:
            self._daemon().unregister(model)
        except ModelNotFoundError:
            return

    def logs(self, model: str | None, lines: int) -> list[str]:
        """Return log lines; none of a model that is not here."""
        try:
            return self._daemon().logs(model, lines)
        except ModelNotFoundError:
            return []

    def stop(self) -> None:
        """Stop the daemon; returns when it has ended."""
        self._stopped = True
        with self._starting:
            _stop(self._runtime_dir)
        self._environments.close()


def _make(runtime_dir: Path) -> None:
    """Make a runtime directory that nobody else can put another one in the place of.

    Raises:
        PyTritonDaemonError: somebody else could, or has made it
    """
    runtime_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        runtime_dir.mkdir(mode=0o700)
    parent = os.stat(runtime_dir.parent)
    others_move = bool(parent.st_mode & stat.S_IWOTH) and not parent.st_mode & stat.S_ISVTX
    if others_move or not _is_own(runtime_dir.parent, root=True) or not _is_own(runtime_dir):
        raise PyTritonDaemonError(
            f"{runtime_dir} belongs to another user, or another user may move it: a daemon there would get what you "
            "register. Remove it, or name another folder: `pytriton-daemon fleet start --runtime-dir FOLDER`."
        )


def _is_own(folder: Path, *, root: bool = False) -> bool:
    """Whether a folder is this user's (or root's), and so is the link that it may be."""
    users = {os.geteuid(), 0} if root else {os.geteuid()}
    try:
        return {os.lstat(folder).st_uid, os.stat(folder).st_uid} <= users and folder.is_dir()
    except OSError:
        return False


def _owner_of(runtime_dir: Path) -> Optional[int]:
    """Return what says that an actor owns the daemon there; None where another one does, be it of another cluster."""
    try:
        owner = os.open(runtime_dir / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(owner)
        return None
    return owner


def _stop(runtime_dir: str) -> None:
    """Stop a daemon; returns when it has ended."""
    subprocess.run(
        [sys.executable, "-m", "pytriton._cli", "stop", "--runtime-dir", runtime_dir],
        capture_output=True, timeout=_START_S, check=False,
    )  # fmt: skip


def _lasting(status: messages.Status) -> messages.Status:
    """Return what balancers go by: where the daemon takes requests, and for which models."""
    return messages.Status(
        status.version, status.pid, status.python, status.runtime_dir, status.state, status.started_at,
        messages.ServerInfo(
            "", None, http_url=status.server.http_url, grpc_url=status.server.grpc_url
        ),
        [messages.ModelInfo(one.name, one.version, "", [], trial=one.trial) for one in status.models],
    )  # fmt: skip
