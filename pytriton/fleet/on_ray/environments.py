"""The environments (`runtime_env`) that Ray creates on a node for the models of its daemon.

Ray creates an environment for an actor, and keeps it as long as the actor lives. Therefore each environment that a
registration of the daemon uses has a holder actor. A registration names its environment in an environment variable of
its workers, so that the required holders can be determined from the daemon after a restart of the node actor.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from pytriton._protocol import env_variables as rules
from pytriton._protocol import messages
from pytriton._register.environments import PACKAGES_VARIABLE, worker_packages
from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet.on_ray import NAMESPACE, environment_holder, import_ray
from pytriton.fleet.on_ray.runtime_env import decoded, has_interpreter

#: Environment variable of workers with the fleet's digest of the registration and the key of its environment.
VARIABLE = "PYTRITON_FLEET_REGISTRATION"
#: Environment variable of workers of a repeated registration, with the ID of the request.
REQUEST_VARIABLE = "PYTRITON_FLEET_REQUEST"
#: How long Ray keeps a package for actors that are about to use it.
_PINNED_S = 600
#: Prefixes of variables set by Ray, and by the shell that starts an actor in an environment.
_OF_RAY = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")


class RayEnvironment(NamedTuple):
    """An interpreter, its module search path, a working directory and environment variables."""

    python: str
    search_path: list[str]
    folder: str
    variables: dict[str, str]


class Environments:
    """The environments of one node. Thread-safe.

    Args:
        names: name prefix of the node's holders
        node: ID of the node
        ray: the module `ray`, or a fake for tests
    """

    def __init__(self, names: str, node: str, ray: Any = None) -> None:
        self._ray = import_ray() if ray is None else ray
        self._names = names
        self._node = node
        self._lock = threading.Lock()
        self._using: Counter[str] = Counter()
        self._used: Counter[str] = Counter()
        self._holders: dict[str, Any] = {}
        for name in named_actors(self._ray, names):
            self._take(name)

    @cached_property
    def _own(self) -> RayEnvironment:
        """The environment of a process for which Ray has not created one."""
        return RayEnvironment(*environment_holder.surroundings())

    @contextlib.contextmanager
    def create(
        self, spec: messages.ModelSpec, environment: bytes, packages: Mapping[str, bytes], digest: str
    ) -> Iterator[messages.ModelSpec]:  # fmt: skip
        """Create an environment. Keep it until the end of the block, and as long as a registration needs it (see
        `keep`).

        Yield the specification, changed so that the workers run in the environment.

        Args:
            spec: specification of the model
            environment: the serialized runtime_env
            packages: URI -> package that Ray needs for the environment
            digest: digest of the registration

        Raises:
            PyTritonDaemonError: Ray could not create it; contains Ray's message
        """
        key = hashlib.sha256(environment).hexdigest()[:16]
        with self._lock:
            self._using[key] += 1
        try:
            around = self._surroundings(key, environment, packages)
            yield _run_in_environment(
                spec, decoded(environment), around, self._own, f"{digest} {key}"
            )
        finally:
            with self._lock:
                self._using[key] -= 1
                self._used[key] += 1

    def mark(self) -> Counter[str]:
        """Return a mark for `keep`. Call this before determining which environments are needed."""
        with self._lock:
            return Counter(self._used)

    def keep(self, needed: Collection[str], mark: Mapping[str, int]) -> None:
        """Kill the holders of environments that are not needed.

        Args:
            needed: keys of the registrations' environments
            mark: result of `mark`; environments that have been used since are kept, too
        """
        with self._lock:
            for key in list(self._holders):
                used = self._using[key] or self._used[key] != mark.get(key, 0)
                if key not in needed and not used:
                    self._ray.kill(self._holders.pop(key), no_restart=True)

    def has(self, key: str) -> bool:
        """Return whether an environment exists; True for "", which stands for no environment."""
        with self._lock:
            return not key or key in self._holders

    def close(self) -> None:
        """Kill all holders."""
        with self._lock:
            for one in self._holders.values():
                self._ray.kill(one, no_restart=True)
            self._holders.clear()

    def _take(self, name: str) -> None:
        """Take over a holder that a previous actor of this node has created."""
        with contextlib.suppress(ValueError):  # it has ended
            actor = self._ray.get_actor(name, NAMESPACE)
            key = name[len(self._names) :].partition("-")[0]
            if key in self._holders:
                self._ray.kill(actor, no_restart=True)
            else:
                self._holders[key] = actor

    def _surroundings(
        self, key: str, environment: bytes, packages: Mapping[str, bytes]
    ) -> RayEnvironment:
        with self._lock:
            holder = self._holders.get(key)
            if holder is None:
                holder = self._holders[key] = self._hold(key, environment, packages)
        try:
            return RayEnvironment(*self._ray.get(holder.describe.remote()))
        except self._ray.exceptions.RayError as error:
            with self._lock:
                if self._holders.get(key) is holder:
                    del self._holders[key]
                    self._ray.kill(holder, no_restart=True)
            raise PyTritonDaemonError(f"Ray could not create the runtime_env: {error}") from error

    def _hold(self, key: str, environment: bytes, packages: Mapping[str, bytes]) -> Any:
        kv = self._ray.experimental.internal_kv
        for uri, package in packages.items():
            # Ray deletes a package that no actor of a job and no detached actor has used for some time.
            kv._pin_runtime_env_uri(uri, expiration_s=_PINNED_S)
            if not kv._internal_kv_exists(uri.encode()):
                kv._internal_kv_put(uri.encode(), package)
        self._ray.cloudpickle.register_pickle_by_value(environment_holder)
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return (
            self._ray.remote(environment_holder.EnvironmentHolder)
            .options(
                # A terminating holder keeps its name for a moment.
                name=f"{self._names}{key}-{secrets.token_hex(4)}", namespace=NAMESPACE, lifetime="detached",
                max_restarts=-1, max_task_retries=-1, num_cpus=0, runtime_env=decoded(environment),
                scheduling_strategy=strategy(self._node, soft=False),
            )
            .remote()
        )  # fmt: skip


def registered_as(one: messages.KeptRegistration) -> tuple[str, str]:
    """Return the fleet's digest of a registration, and the key of the registration's environment ("": none)."""
    mark = one.spec.world.env.get(VARIABLE)
    if mark is None:
        return one.digest, ""
    digest, _, key = mark.partition(" ")
    return digest, key


def without_mark(spec: messages.ModelSpec) -> messages.ModelSpec:
    """Return a specification without the fleet's variables, which a registrant inside a worker would forward."""
    ours = VARIABLE, REQUEST_VARIABLE
    if not any(one in spec.world.env for one in ours):
        return spec
    env = {key: value for key, value in spec.world.env.items() if key not in ours}
    return msgspec.structs.replace(spec, world=msgspec.structs.replace(spec.world, env=env))


def named_actors(ray: Any, beginning: str) -> list[str]:
    """Return all actor names, in any fleet, that start with a prefix."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = (one["name"] for one in found if one["namespace"] == NAMESPACE)
    return sorted(name for name in names if name.startswith(beginning))


def _run_in_environment(
    spec: messages.ModelSpec,
    runtime_env: Mapping[str, Any],
    around: RayEnvironment,
    own: RayEnvironment,
    mark: str,
) -> messages.ModelSpec:
    """Return a copy of a specification that makes the workers run in an environment.

    Args:
        spec: the registered specification
        runtime_env: the runtime_env from which Ray created the environment
        around: `surroundings` inside the environment
        own: `surroundings` of a process outside the environment
        mark: value of the environment variable that identifies the environment
    """
    world = spec.world
    requested = runtime_env.get("env_vars") or {}
    new = {key: value for key, value in around.variables.items() if own.variables.get(key) != value}
    new = {key: value for key, value in rules.forwarded_variables(new).items() if not key.startswith(_OF_RAY)}  # fmt: skip
    new.update((key, around.variables[key]) for key in requested if key in around.variables)
    env = {**world.env, **new, VARIABLE: mark}
    python, search = world.python, world.sys_path
    if has_interpreter(runtime_env):
        python = around.python
        search = [*search, *around.search_path]
        packages = worker_packages(python)
        env.update({} if packages is None else {PACKAGES_VARIABLE: packages})
    else:
        added = [one for one in around.search_path if one not in own.search_path]
        if search:
            search = [*added, *search]
        elif added:  # the interpreter's own path, which is not known here
            env["PYTHONPATH"] = ":".join([*added, *filter(None, [env.get("PYTHONPATH")])])
    folder = around.folder if runtime_env.get("working_dir") else world.cwd
    world = msgspec.structs.replace(world, python=python, sys_path=search, env=env, cwd=folder)
    return msgspec.structs.replace(spec, world=world)
