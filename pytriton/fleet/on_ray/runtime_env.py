"""Ray's `runtime_env` of a registration in serialized form: validated, with local folders packed by Ray.

register(runtime_env=…) ▶ `uploaded`: Ray packs and uploads folders ▶ JSON and packages, kept with the registration
                        ▶ on each node: `environments` has Ray make it there
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton._protocol import env_variables as rules
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.fleet.on_ray import import_ray

if TYPE_CHECKING:
    from pytriton._register.message import RegistrationPlan
    from pytriton.run_options import RegisterOptions

#: Fields that Ray creates on a node, and a daemon can pass to its workers.
HONOURED = (
    "conda", "config", "env_vars", "excludes", "pip", "py_executable", "py_modules", "uv", "working_dir",
)  # fmt: skip
#: Fields that define the workers' interpreter.
_INTERPRETER = ("conda", "pip", "py_executable", "uv")
_GCS = "gcs://"
_logger = logging.getLogger("pytriton.fleet.on_ray")


def check(runtime_env: Any, options: RegisterOptions) -> dict[str, Any]:
    """Return a registration's runtime_env as a plain dict; {} if there is none.

    Raises:
        PyTritonBadParameterError: workers do not support a field, or it conflicts with another option
    """
    if runtime_env is None:
        return {}
    if not isinstance(runtime_env, Mapping):
        raise PyTritonBadParameterError(
            f"runtime_env={runtime_env!r}: give a dict as to Ray, or a ray.runtime_env.RuntimeEnv."
        )
    found = {str(key): value for key, value in runtime_env.items() if value is not None}
    refused = sorted(set(found) - set(HONOURED))
    if refused:
        raise PyTritonBadParameterError(
            f"runtime_env has {', '.join(refused)}: daemons start the workers of a fleet, not Ray, and can give them "
            f"what Ray makes of {', '.join(HONOURED)}; no container, no hook in Ray's own process and no profiler."
        )
    twice = [
        (option, name)
        for option, names in (
            ("python", _INTERPRETER),
            ("requirements", _INTERPRETER),
            ("cwd", ("working_dir",)),
        )
        for name in names
        if name in found and options.get(option) is not None
    ]
    theirs, ours = found.get("env_vars"), options.get("env")
    if isinstance(theirs, Mapping) and isinstance(ours, Iterable):
        twice += [(f"env ({name})", "env_vars") for name in theirs if name in ours]
    if twice:
        option, name = twice[0]
        raise PyTritonBadParameterError(
            f"{option} and runtime_env's {name} say the same, perhaps not alike: leave one of them out."
        )
    return found


def makes_interpreter(runtime_env: Mapping[str, Any]) -> bool:
    """Whether workers use an interpreter of the environment, instead of the registrant's."""
    return any(runtime_env.get(name) for name in _INTERPRETER)


def with_environment(
    planned: RegistrationPlan, runtime_env: Mapping[str, Any], options: RegisterOptions
) -> RegistrationPlan:
    """Return a registration without the registrant's interpreter settings, if the environment has an interpreter."""
    from pytriton._register.environment import wanted_variables

    if not makes_interpreter(runtime_env):
        return planned
    spec = planned.message.spec
    said = {key: value for key, value in wanted_variables(options.get("env")).items() if value}
    env = {**rules.whole(spec.world.env, own_interpreter=False), **said}
    first = [os.path.abspath(os.path.expanduser(one)) for one in options.get("sys_path") or ()]
    world = msgspec.structs.replace(spec.world, env=env, sys_path=first)
    message = msgspec.structs.replace(
        planned.message, spec=msgspec.structs.replace(spec, world=world)
    )
    return planned._replace(message=message, own_interpreter=False)


def uploaded(runtime_env: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
    """Make Ray pack and upload local folders; return the serialized environment, and its packages.

    Raises:
        PyTritonBadParameterError: Ray rejects the runtime_env, or does not find a folder or package
    """
    if not runtime_env:
        return b"", []
    kv = import_ray("ray.experimental.internal_kv")
    try:
        plain = dict(import_ray("ray.runtime_env").RuntimeEnv(**_with_uris(dict(runtime_env))))
        encoded = msgspec.json.encode(plain, order="deterministic")
    except (TypeError, ValueError, OSError, RuntimeError) as error:
        raise PyTritonBadParameterError(f"runtime_env: {error}") from error
    packages = []
    for uri in packages_of(plain):
        package = kv._internal_kv_get(uri.encode())
        if package is None:
            raise PyTritonBadParameterError(f"runtime_env: Ray has no package {uri}.")
        packages.append(package)
    return encoded, packages


def decoded(environment: bytes) -> dict[str, Any]:
    """Return a deserialized environment."""
    return msgspec.json.decode(environment, type=dict[str, Any]) if environment else {}


def packages_of(runtime_env: Mapping[str, Any]) -> list[str]:
    """Return the URIs of the packages in Ray's key-value store, without duplicates."""
    named = [runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or ())]
    uris = (one for one in named if isinstance(one, str) and one.startswith(_GCS))
    return list(dict.fromkeys(uris))


def split(payloads: Sequence[bytes], environment: bytes) -> tuple[list[bytes], dict[str, bytes]]:
    """Split payloads into a registration's callables, and its environment's packages by URI, which come last."""
    uris = packages_of(decoded(environment))
    callables = len(payloads) - len(uris)
    return list(payloads[:callables]), dict(zip(uris, payloads[callables:]))


def digest_with(digest: str, environment: bytes) -> str:
    """Return the digest of a registration with its environment."""
    if not environment:
        return digest
    return hashlib.sha256(digest.encode() + environment).hexdigest()


def _with_uris(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime_env in which URIs replace folders and files of this machine."""
    modules = import_ray("ray._private.runtime_env.py_modules")
    folder = import_ray("ray._private.runtime_env.working_dir")
    constants = import_ray("ray._private.ray_constants")
    ignore = getattr(constants, "RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "")
    # `ray.init` does the same for a job; for an actor Ray requires URIs.
    with tempfile.TemporaryDirectory(prefix="ptf-") as scratch:
        for upload in (modules.upload_py_modules_if_needed, folder.upload_working_dir_if_needed):
            more: dict[str, Any] = {"scratch_dir": scratch, "logger": _logger}
            if "include_gitignore" in inspect.signature(upload).parameters:
                more["include_gitignore"] = os.environ.get(ignore, "0") != "1"
            with _convert_ray_errors():
                runtime_env = upload(runtime_env, **more)
    # It has been applied.
    return {key: value for key, value in runtime_env.items() if key != "excludes"}


@contextlib.contextmanager
def _convert_ray_errors() -> Any:
    """Convert Ray's own errors to those that `uploaded` handles."""
    try:
        yield
    except import_ray("ray.exceptions").RayError as error:
        raise RuntimeError(str(error)) from error
