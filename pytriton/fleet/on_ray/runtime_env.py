"""Validates and serializes a registration's `runtime_env`, whose local folders Ray packs and uploads.

register(runtime_env=…) ▶ `uploaded`: Ray packs and uploads folders ▶ JSON and packages, kept with the registration
                        ▶ on each node: `environments` lets Ray create it there
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton._protocol import env_variables as rules
from pytriton._protocol.arguments import plain
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
    """Validate a registration's runtime_env and return it as a plain dict; {} if there is none.

    Raises:
        PyTritonBadParameterError: workers do not support a field, or it conflicts with another option
    """
    if runtime_env is None:
        return {}
    if not isinstance(runtime_env, Mapping):
        raise PyTritonBadParameterError(
            f"runtime_env={runtime_env!r}: must be a dict, as in Ray, or a ray.runtime_env.RuntimeEnv."
        )
    found = {str(key): value for key, value in runtime_env.items() if value is not None}
    refused = sorted(set(found) - set(HONOURED))
    if refused:
        raise PyTritonBadParameterError(
            f"runtime_env contains {', '.join(refused)}, which fleets do not support: daemons start the workers, "
            f"not Ray. Fleets support {', '.join(HONOURED)}; they do not support containers, profilers, or hooks in Ray's processes."
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
            f"{option} and runtime_env's {name} set the same thing. Leave out one of them."
        )
    return found


def has_interpreter(runtime_env: Mapping[str, Any]) -> bool:
    """Return whether the environment has an interpreter, which workers use instead of the registrant's."""
    return any(runtime_env.get(name) for name in _INTERPRETER)


def with_environment(
    planned: RegistrationPlan, runtime_env: Mapping[str, Any], options: RegisterOptions
) -> RegistrationPlan:
    """Return a registration without the registrant's interpreter settings if the environment has an interpreter."""
    from pytriton._register.environment import select_variables

    if not has_interpreter(runtime_env):
        return planned
    spec = planned.message.spec
    explicit = {key: value for key, value in select_variables(options.get("env")).items() if value}
    env = {**rules.usable_variables(spec.world.env, own_interpreter=False), **explicit}
    first = [os.path.abspath(os.path.expanduser(one)) for one in options.get("sys_path") or ()]
    world = msgspec.structs.replace(spec.world, env=env, sys_path=first)
    message = msgspec.structs.replace(
        planned.message, spec=msgspec.structs.replace(spec, world=world)
    )
    return planned._replace(message=message, own_interpreter=False)


def uploaded(runtime_env: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
    """Make Ray pack and upload local folders. Return the serialized environment and its packages.

    Raises:
        PyTritonBadParameterError: Ray rejects the runtime_env, or cannot find a folder or package
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
    """Return the URIs of an environment's packages in Ray's key-value store, without duplicates."""
    named = [runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or ())]
    uris = (one for one in named if isinstance(one, str) and one.startswith(_GCS))
    return list(dict.fromkeys(uris))


def split(payloads: Sequence[bytes], environment: bytes) -> tuple[list[bytes], dict[str, bytes]]:
    """Split payloads into the callables and the environment's packages, which come last. Return the packages by URI."""
    uris = packages_of(decoded(environment))
    callables = len(payloads) - len(uris)
    return list(payloads[:callables]), dict(zip(uris, payloads[callables:]))


def digest_with(digest: str, environment: bytes) -> str:
    """Return the digest of a registration together with its environment."""
    if not environment:
        return digest
    return hashlib.sha256(digest.encode() + environment).hexdigest()


def _with_uris(runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime_env in which URIs replace the local folders and files."""
    modules = import_ray("ray._private.runtime_env.py_modules")
    folder = import_ray("ray._private.runtime_env.working_dir")
    constants = import_ray("ray._private.ray_constants")
    ignore = getattr(constants, "RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "")
    # `ray.init` does the same for a job, but for an actor Ray requires URIs.
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
    """Convert Ray's exceptions to exceptions that `uploaded` handles."""
    try:
        yield
    except import_ray("ray.exceptions").RayError as error:
        raise RuntimeError(str(error)) from error


# ── The Ray resources of an instance, validated before they are sent to the controller ──

#: Options of a Ray actor that define the resources it reserves and where it may be placed.
ALLOWED = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector")
_AMOUNTS = ("num_cpus", "num_gpus", "memory")
#: Ray assigns either a fraction of one unit or whole units.
_WHOLE = ("num_cpus", "num_gpus")
_DEFAULT = {"num_cpus": 1}


def checked(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Validate the resources of an instance and return them as options for Ray; one CPU by default.

    Raises:
        PyTritonBadParameterError: Ray does not support the resource or the amount
    """
    if resources is None:
        return dict(_DEFAULT)
    if not isinstance(resources, Mapping):
        raise PyTritonBadParameterError(
            f'resources={resources!r}: must be a dict, such as {{"num_gpus": 1}}'
        )
    held = dict(resources)
    if "runtime_env" in held:
        raise PyTritonBadParameterError("resources contains runtime_env. Pass it as runtime_env=")
    unknown = sorted(map(str, set(held) - set(ALLOWED)))
    if unknown:
        raise PyTritonBadParameterError(
            f"resources contains {', '.join(unknown)}, but Ray can reserve only {', '.join(ALLOWED)} for an instance. "
            f'Put custom resources in a nested dict: {{"resources": {{"{unknown[0]}": 1}}}}.'
        )
    for name in _AMOUNTS:
        if name in held:
            held[name] = _amount(name, held[name], whole=name in _WHOLE)
    own = held.get("resources", {})
    _check("resources", own, isinstance(own, Mapping), "a dict of names and numbers")
    if "resources" in held:
        held["resources"] = {
            _text("a name in resources", name): _amount(name, one, whole=True)
            for name, one in own.items()
        }
    if "accelerator_type" in held:
        _text("accelerator_type", held["accelerator_type"])
    labels = held.get("label_selector", {})
    _check("label_selector", labels, isinstance(labels, Mapping), "a dict of labels")
    if "label_selector" in held:
        held["label_selector"] = {
            _text("a label", name): _text(f"the label {name}", one) for name, one in labels.items()
        }
    return held


def _amount(name: str, value: Any, *, whole: bool) -> float:
    value = plain(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _check(name, value, number and 0 <= value < math.inf, "a non-negative number")
    above = value > 1 and value != int(value)
    _check(name, value, not (whole and above), "a fraction of 1, or an integer")
    return int(value) if value == int(value) else float(value)


def _text(what: str, value: Any) -> str:
    _check(what, value, isinstance(value, str) and bool(value), "a non-empty string")
    return str(value)


def _check(name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise PyTritonBadParameterError(f"resources: {name}={value!r}: it must be {what}")
