"""The flags of `pytriton-daemon fleet register` for Ray: resources of an instance, environment of its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

from pytriton._cli.errors import CliError
from pytriton._protocol.exit_codes import ExitCode


def options_of_ray(
    num_cpus: Optional[float],
    num_gpus: Optional[float],
    resources: Optional[str],
    runtime_env: Optional[str],
    runtime_env_json: Optional[str],
) -> dict[str, Any]:
    """Return `resources` and `runtime_env` for `RayFleetClient.register`, if flags set them.

    Args:
        num_cpus, num_gpus: for each instance
        resources: all resources that Ray reserves, as JSON
        runtime_env: a file, YAML or JSON
        runtime_env_json: the same as JSON text

    Raises:
        CliError: something cannot be read, or is set twice
    """
    found: dict[str, Any] = {}
    held = {} if resources is None else _object("--resources", resources)
    for name, flag, amount in (
        ("num_cpus", "--num-cpus", num_cpus),
        ("num_gpus", "--num-gpus", num_gpus),
    ):
        if amount is None:
            continue
        if name in held:
            raise CliError(ExitCode.USAGE, f"{flag} and --resources both set {name}: remove one")
        held[name] = amount
    if held or resources is not None:
        found["resources"] = held
    if runtime_env is not None and runtime_env_json is not None:
        raise CliError(ExitCode.USAGE, "use either --runtime-env or --runtime-env-json, not both")
    if runtime_env_json is not None:
        found["runtime_env"] = _object("--runtime-env-json", runtime_env_json)
    if runtime_env is not None:
        found["runtime_env"] = _of_file(runtime_env)
    return found


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"{flag} {text!r} is not JSON: {error}") from None
    return _a_dict(flag, found)


def _of_file(name: str) -> dict[str, Any]:
    flag = f"--runtime-env {name}"
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        more = ". It takes a file; --runtime-env-json takes the text itself" if "{" in name else ""
        raise CliError(ExitCode.USAGE, f"{flag} cannot be read: {error}{more}") from None
    try:
        return _a_dict(flag, json.loads(text))
    except ValueError:
        pass
    try:
        import yaml  # a dependency of Ray
    except ImportError:
        raise CliError(
            ExitCode.USAGE, f"{flag} is not JSON, and YAML needs PyYAML, which comes with Ray"
        ) from None
    try:
        return _a_dict(flag, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise CliError(ExitCode.USAGE, f"{flag} is neither JSON nor YAML: {error}") from None


def _a_dict(flag: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise CliError(
            ExitCode.USAGE,
            f"{flag} must be an object of names and values, not {type(found).__name__}",
        )
    return found
