"""The actors besides the controller: a holder for each instance, and a node actor for the daemon of each node.

They are plain classes. The controller creates Ray actors from them, with the required resources and placement.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import DaemonNotRunningError, ModelNotFoundError, PyTritonDaemonError
from pytriton.fleet.canary import CanaryCounters, counters_of
from pytriton.fleet.on_ray import import_ray
from pytriton.fleet.on_ray.environments import Environments, registered_as
from pytriton.fleet.on_ray.runtime_env import digest_with, split

_logger = logging.getLogger("pytriton.fleet.on_ray")

#: Lock file in a runtime directory, held by the actor that owns the daemon.
_OWNER = "fleet.lock"
_START_S = 300.0
#: Back-off after a failed start of the daemon, which doubles with each failure.
_INITIAL_DELAY_S, _MAX_DELAY_S = 5.0, 60.0
_ANSWER_S = 30.0
_RAYS = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


class ResourceHolder:
    """Actor that reserves Ray's resources for one instance. The daemon on its node runs the instance."""

    def where(self) -> tuple[str, list[str]]:
        """Return the ID of this actor's node, and the GPUs that Ray has assigned to it."""
        ray = import_ray()
        gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return ray.get_runtime_context().get_node_id(), [str(one) for one in gpus]


@contextmanager
def priority_of_parent() -> Iterator[None]:
    """Start processes in the block with the scheduling priority of this process's parent, Ray's raylet, if permitted.

    Ray lowers the priority of actors (`RAY_worker_niceness`, 15 by default), which a daemon, its tritonserver and its
    workers would inherit. Linux keeps a priority for each thread, so other threads of this process are not affected.
    """
    own = usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        with suppress(ProcessLookupError):  # the raylet has exited, so Ray ends this actor, too
            usual = os.getpriority(os.PRIO_PROCESS, os.getppid())
        if usual < own:
            os.setpriority(os.PRIO_PROCESS, 0, usual)
    except PermissionError:
        _logger.warning(
            "the daemon runs with the low priority of Ray's actors (nice %d), so other processes may slow it down: set "
            "RAY_worker_niceness=0 when you start Ray, or allow a nice value of %d (RLIMIT_NICE, CAP_SYS_NICE)",
            own,
            usual,
        )
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, own)


class NodeActor:
    """Actor that owns the daemon of one node: it starts the daemon, or takes over a running one.

    Args:
        runtime_dir: runtime directory of the daemon
        flags: options of `pytriton-daemon start`
        holders: name prefix of this node's environment holders
        node: ID of the node
        ray: the module `ray`, or a fake for tests
    """

    def __init__(
        self, runtime_dir: str, flags: Sequence[str], holders: str, node: str, ray: Any = None
    ) -> None:
        self._runtime_dir = runtime_dir
        self._flags = list(flags)
        self._stopped = False
        #: Held while a daemon is started or stopped.
        self._starting = threading.Lock()
        self._ray = import_ray() if ray is None else ray
        #: A file descriptor, held until this process exits.
        self._owner: Optional[int] = None
        #: The key of registrations, model -> (digest, instances), the keys of the environments that they need, and
        #: model -> interpreter of its environment. One value, since polls may run concurrently.
        self._kept: tuple[str, dict[str, tuple[str, int]], set[str], dict[str, str]] = (
            "", {}, set(), {},
        )  # fmt: skip
        self._environments = Environments(holders, node, self._ray)
        #: None before the first poll: an actor that cannot be created is not recreated, one that fails is
        #: retried.
        self._client: Optional[DaemonClient] = None
        #: Why the daemon did not start, when to retry, and the current delay.
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
            if self._stopped:  # a poll in progress must not restart it
                raise PyTritonDaemonError("the fleet is being stopped")
            why, until, pause = self._failed
            if time.monotonic() < until:
                raise PyTritonDaemonError(why)
            try:
                client = self._started()
            except PyTritonDaemonError as error:
                # Its port may be in use, and each attempt costs seconds of CPU time.
                pause = min(pause * 2 or _INITIAL_DELAY_S, _MAX_DELAY_S)
                self._failed = str(error), time.monotonic() + pause, pause
                raise
            self._failed = "", 0.0, 0.0
            return client

    def _started(self) -> DaemonClient:
        with suppress(DaemonNotRunningError):  # started by another poll
            return connect(self._runtime_dir, _ANSWER_S)
        left = self._adopt_daemon()
        if left is not None:
            return left
        command = [sys.executable, "-m", "pytriton._cli", "start", "--detach", "--ephemeral"]
        command += ["--runtime-dir", self._runtime_dir, *self._flags]
        # The daemon outlives this actor, so do not pass on the variables that Ray sets for an actor without GPUs.
        env = {key: value for key, value in os.environ.items() if not key.startswith(_RAYS)}
        with priority_of_parent():
            started = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_START_S, check=False
            )
        if started.returncode != 0:
            raise PyTritonDaemonError(
                f"the daemon in {self._runtime_dir} did not start: {started.stderr.strip()[-2000:]}"
            )
        return connect(self._runtime_dir, _ANSWER_S)

    def _daemon(self) -> DaemonClient:
        """Return the daemon's client. Start the daemon on first use."""
        if self._client is None:
            self._client = self._connected()
        return self._client

    def _adopt_daemon(self) -> Optional[DaemonClient]:
        """Take over a daemon that a former Ray node left on this machine, and that still holds the ports and GPUs."""
        own = Path(self._runtime_dir)
        named = re.compile(re.escape(own.name[:-8]) + "[0-9a-f]{8}")
        if not named.fullmatch(own.name):  # not created by `Cluster`, which names it after the node
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

    def report_state(
        self, known: str = "", flags: Optional[Sequence[str]] = None
    ) -> tuple[bytes, str, Optional[bytes]]:
        """Return the daemon's status and, if it has changed, the fleet's view of it. Restart the daemon if needed.

        The status changes with each batch and is only displayed, so it stays encoded. The fleet's view is identified
        by a key.

        Args:
            known: key of the view that the caller already has
            flags: options for the next start of the daemon

        Returns:
            the encoded status, the key, and the encoded view: (the status without volatile fields, model -> (digest,
                instances)); None if the caller already has it
        """
        if flags is not None and list(flags) != self._flags:
            self._flags, self._failed = list(flags), ("", 0.0, 0.0)
        mark = self._environments.mark()
        state, kept, needed, interpreters = self._kept
        client = self._daemon()
        # Query the status last, because its instances count as placed.
        try:
            changed, status = client.changed_registrations(state), client.status()
        except DaemonNotRunningError:
            client = self._client = self._connected()
            changed, status = client.changed_registrations(state), client.status()
        if changed is not None:
            known_as = [(one.spec, *registered_as(one)) for one in changed.registrations]
            # A model whose environment Ray may have removed must be registered again.
            kept = {
                spec.name: (digest if self._environments.has(key) else "", spec.instances)
                for spec, digest, key in known_as
            }
            needed = {key for _, _, key in known_as if key}
            interpreters = {spec.name: spec.world.python for spec, _, key in known_as if key}
            self._kept = changed.state, kept, needed, interpreters
        self._environments.keep(needed, mark)
        # `uv run` deletes its environment when it ends, and Ray creates another one when it restarts the holder.
        lost = [name for name, path in interpreters.items() if not os.path.exists(path)]
        kept = {**kept, **{name: ("", kept[name][1]) for name in lost}}
        facts = msgspec.msgpack.encode((_balancer_view(status), kept))
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
        """Register a model with the daemon. If the model has an environment, its workers run in that environment.

        Raises:
            PyTritonDaemonError: the payloads do not match the digest, or Ray could not create the environment.
        """
        spec = msgspec.msgpack.decode(message, type=messages.ModelSpec)
        if digest_with(registration_digest(spec, payloads), environment) != digest:
            raise PyTritonDaemonError(f"model {spec.name!r} was damaged in transit to this node")
        spec = msgspec.structs.replace(spec, instances=instances, devices=list(devices))
        callables, packages = split(payloads, environment)
        around: AbstractContextManager[messages.ModelSpec] = nullcontext(spec)
        if environment:
            around = self._environments.create(spec, environment, packages, digest)
        with around as inside:
            self._daemon().register_prepared(messages.Register(inside, replace=replace), callables)

    def canary_counters(self, model: str) -> CanaryCounters:
        """Return the daemon's counters for a model."""
        return counters_of(self._daemon().metrics(), model)

    def scale(self, model: str, instances: int) -> None:
        """Change a model's number of instances on this node."""
        self._daemon().scale_prepared(messages.Scale(model, instances))

    def unregister(self, model: str) -> None:
        """Unregister a model. Do nothing if it is not registered."""
        try:
            self._daemon().unregister(model)
        except ModelNotFoundError:
            return

    def logs(self, model: str | None, lines: int) -> list[str]:
        """Return log lines of a model or the daemon; an empty list if the model is not registered here."""
        try:
            return self._daemon().logs(model, lines)
        except ModelNotFoundError:
            return []

    def stop(self) -> None:
        """Stop the daemon and wait for its exit."""
        self._stopped = True
        with self._starting:
            _stop(self._runtime_dir)
        self._environments.close()


def _make(runtime_dir: Path) -> None:
    """Create a runtime directory, and check that no other user can replace it.

    Raises:
        PyTritonDaemonError: another user owns the directory or can replace it
    """
    runtime_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        runtime_dir.mkdir(mode=0o700)
    parent = os.stat(runtime_dir.parent)
    others_move = bool(parent.st_mode & stat.S_IWOTH) and not parent.st_mode & stat.S_ISVTX
    if others_move or not _is_own(runtime_dir.parent, root=True) or not _is_own(runtime_dir):
        raise PyTritonDaemonError(
            f"{runtime_dir} belongs to another user or can be replaced by one, who would then receive what "
            f"you register. Remove it, or choose another folder: `pytriton-daemon fleet start --runtime-dir FOLDER`."
        )


def _is_own(folder: Path, *, root: bool = False) -> bool:
    """Return whether a folder, and the symbolic link to it if any, belongs to this user or root."""
    users = {os.geteuid(), 0} if root else {os.geteuid()}
    try:
        return {os.lstat(folder).st_uid, os.stat(folder).st_uid} <= users and folder.is_dir()
    except OSError:
        return False


def _owner_of(runtime_dir: Path) -> Optional[int]:
    """Acquire the lock that a daemon's owner must hold, and return the file descriptor of the lock.

    Return None if another actor holds it, which may belong to another cluster.
    """
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
    """Stop a daemon and wait for its exit."""
    subprocess.run(
        [sys.executable, "-m", "pytriton._cli", "stop", "--runtime-dir", runtime_dir],
        capture_output=True, timeout=_START_S, check=False,
    )  # fmt: skip


def _balancer_view(status: messages.Status) -> messages.Status:
    """Return the parts of a status that balancers use: where the daemon accepts requests, and for which models."""
    return messages.Status(
        status.version, status.pid, status.python, status.runtime_dir, status.state, status.started_at,
        messages.ServerInfo(
            "", None, http_url=status.server.http_url, grpc_url=status.server.grpc_url
        ),
        [
            messages.ModelInfo(one.name, one.version, "", [], lease=one.lease, route=one.route)
            for one in status.models
        ],
    )  # fmt: skip
