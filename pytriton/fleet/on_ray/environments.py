"""The environments (`runtime_env`) that Ray makes and keeps on a node for what the daemon there serves.

Ray makes one for an actor, and keeps it as long as that lives. So there is a holder for each environment that any
registration of the daemon has, and for one that is about to be registered. A registration says in a variable of its
workers what it is: which holders are needed is read from the daemon, whatever has become of the node's actor.
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
from pytriton.fleet.on_ray.runtime_env import decoded, makes_interpreter

#: A variable of the workers: the fleet's digest of what was registered, and the key of its environment.
VARIABLE = "PYTRITON_FLEET_REGISTRATION"
#: A variable of the workers of what was registered once more: the request's id.
REQUEST_VARIABLE = "PYTRITON_FLEET_REQUEST"
#: Ray keeps a package so long for those that are about to use it.
_PINNED_S = 600
#: Ray's own, and of the shell that starts an actor in an environment.
_OF_RAY = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH")


class Surroundings(NamedTuple):
    """An interpreter, where it looks for modules, a working directory and variables."""

    python: str
    search_path: list[str]
    folder: str
    variables: dict[str, str]


class Environments:
    """The environments of one node. For any number of threads.

    Args:
        names: the beginning of its holders' names
        node: its id
        ray: Ray, or what does as it does
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
    def _own(self) -> Surroundings:
        """The surroundings of a process without any of them."""
        return Surroundings(*environment_holder.surroundings())

    @contextlib.contextmanager
    def made(
        self, spec: messages.ModelSpec, environment: bytes, packages: Mapping[str, bytes], digest: str
    ) -> Iterator[messages.ModelSpec]:  # fmt: skip
        """Have Ray make an environment; it stays for the block, and then as long as it is needed (`keep`).

        Yields the specification with workers that run in it.

        Args:
            spec: of the model
            environment: as it travels
            packages: that Ray needs for it, by URI
            digest: of what was registered

        Raises:
            PyTritonDaemonError: Ray could not make it; has Ray's words
        """
        key = hashlib.sha256(environment).hexdigest()[:16]
        with self._lock:
            self._using[key] += 1
        try:
            around = self._surroundings(key, environment, packages)
            yield _inside(spec, decoded(environment), around, self._own, f"{digest} {key}")
        finally:
            with self._lock:
                self._using[key] -= 1
                self._used[key] += 1

    def mark(self) -> Counter[str]:
        """Return what `keep` has to be told with what was asked after this."""
        with self._lock:
            return Counter(self._used)

    def keep(self, needed: Collection[str], mark: Mapping[str, int]) -> None:
        """End the holders that nothing needs.

        Args:
            needed: keys of environments that registrations have
            mark: of before it was asked which; what was used since is needed, too
        """
        with self._lock:
            for key in list(self._holders):
                used = self._using[key] or self._used[key] != mark.get(key, 0)
                if key not in needed and not used:
                    self._ray.kill(self._holders.pop(key), no_restart=True)

    def has(self, key: str) -> bool:
        """Whether an environment is there; "" is none."""
        with self._lock:
            return not key or key in self._holders

    def close(self) -> None:
        """End all holders."""
        with self._lock:
            for one in self._holders.values():
                self._ray.kill(one, no_restart=True)
            self._holders.clear()

    def _take(self, name: str) -> None:
        """Take over a holder of this node's actor that was here before."""
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            actor = self._ray.get_actor(name, NAMESPACE)
            key = name[len(self._names) :].partition("-")[0]
            if key in self._holders:
                self._ray.kill(actor, no_restart=True)
            else:
                self._holders[key] = actor

    def _surroundings(
        self, key: str, environment: bytes, packages: Mapping[str, bytes]
    ) -> Surroundings:
        with self._lock:
            holder = self._holders.get(key)
            if holder is None:
                holder = self._holders[key] = self._hold(key, environment, packages)
        try:
            return Surroundings(*self._ray.get(holder.tell.remote()))
        except self._ray.exceptions.RayError as error:
            with self._lock:
                if self._holders.get(key) is holder:
                    del self._holders[key]
                    self._ray.kill(holder, no_restart=True)
            raise PyTritonDaemonError(f"Ray could not make the runtime_env: {error}") from error

    def _hold(self, key: str, environment: bytes, packages: Mapping[str, bytes]) -> Any:
        kv = self._ray.experimental.internal_kv
        for uri, package in packages.items():
            # Ray forgets a package that no actor of a job, or none that is detached, has used for a while.
            kv._pin_runtime_env_uri(uri, expiration_s=_PINNED_S)
            if not kv._internal_kv_exists(uri.encode()):
                kv._internal_kv_put(uri.encode(), package)
        self._ray.cloudpickle.register_pickle_by_value(environment_holder)
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        return (
            self._ray.remote(environment_holder.EnvironmentHolder)
            .options(
                # One that is ending has its name for a moment.
                name=f"{self._names}{key}-{secrets.token_hex(4)}", namespace=NAMESPACE, lifetime="detached",
                max_restarts=-1, max_task_retries=-1, num_cpus=0, runtime_env=decoded(environment),
                scheduling_strategy=strategy(self._node, soft=False),
            )
            .remote()
        )  # fmt: skip


def registered_as(one: messages.KeptRegistration) -> tuple[str, str]:
    """Return the fleet's digest of what a daemon has registered, and the key of its environment; "": it has none."""
    mark = one.spec.world.env.get(VARIABLE)
    if mark is None:
        return one.digest, ""
    digest, _, key = mark.partition(" ")
    return digest, key


def without_mark(spec: messages.ModelSpec) -> messages.ModelSpec:
    """Return a specification as its registrant may say it: one who runs in a worker of a fleet sends its variables."""
    ours = VARIABLE, REQUEST_VARIABLE
    if not any(one in spec.world.env for one in ours):
        return spec
    env = {key: value for key, value in spec.world.env.items() if key not in ours}
    return msgspec.structs.replace(spec, world=msgspec.structs.replace(spec.world, env=env))


def named_actors(ray: Any, beginning: str) -> list[str]:
    """Return the names of the actors of fleets that begin so."""
    found = ray.util.list_named_actors(all_namespaces=True)
    names = (one["name"] for one in found if one["namespace"] == NAMESPACE)
    return sorted(name for name in names if name.startswith(beginning))


def _inside(
    spec: messages.ModelSpec,
    runtime_env: Mapping[str, Any],
    around: Surroundings,
    own: Surroundings,
    mark: str,
) -> messages.ModelSpec:
    """Return a specification whose workers run in an environment.

    Args:
        spec: as it was registered
        runtime_env: of what the environment was made
        around: the environment
        own: the same of a process without it
        mark: of the registration
    """
    world = spec.world
    said = runtime_env.get("env_vars") or {}
    new = {key: value for key, value in around.variables.items() if own.variables.get(key) != value}
    new = {key: value for key, value in rules.travelling(new).items() if not key.startswith(_OF_RAY)}  # fmt: skip
    new.update((key, around.variables[key]) for key in said if key in around.variables)
    env = {**world.env, **new, VARIABLE: mark}
    python, search = world.python, world.sys_path
    if makes_interpreter(runtime_env):
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
