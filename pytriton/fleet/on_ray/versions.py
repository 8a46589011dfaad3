"""Changes to a model's version: registration, replacement, rollback, and withdrawal of a registration.

The functions change only a `RegisteredModel`. The controller stores it and manages its holders. The ID of a request
identifies what to withdraw, and makes Ray's retries harmless if the controller died before it answered.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.messages.model_spec import registration_digest
from pytriton.fleet.canary import Canary
from pytriton.fleet.on_ray.controller_state import RegisteredModel, Rolling
from pytriton.fleet.on_ray.environments import REQUEST_VARIABLE
from pytriton.fleet.on_ray.runtime_env import digest_with

#: Maximum number of instances per model. Each one needs a holder actor and a worker.
MAX_INSTANCES = 10_000
#: Allowed names, which are part of the names of actors and keys, and of HAProxy's files. As in daemons.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


def new_model(
    spec: messages.ModelSpec,
    payloads: list[bytes],
    resources: dict[str, Any],
    environment: bytes,
    request: str,
    former: Optional[RegisteredModel] = None,
) -> RegisteredModel:
    """Create a newly registered model, without holders.

    Its digest always differs from that of `former`, so that workers restart: modules that they import may have
    changed.
    """
    digest = digest_with(registration_digest(spec, payloads), environment)
    if former is not None and digest == former.digest:
        env = {**spec.world.env, REQUEST_VARIABLE: request or secrets.token_hex(8)}
        world = msgspec.structs.replace(spec.world, env=env)
        spec = msgspec.structs.replace(spec, world=world)
        digest = digest_with(registration_digest(spec, payloads), environment)
    return RegisteredModel(
        spec, payloads, resources, [], digest, request=request, environment=environment
    )


def reason_to_reject(
    new: messages.ModelSpec,
    former: Optional[RegisteredModel],
    replace: bool,
    canary: Optional[Canary],
    resources: dict[str, Any],
) -> str:
    """Check whether a model can be registered. Return an error message, or "" if there is no objection.

    Args:
        new: the new model
        former: the existing model of this name, if any
        replace: whether the existing model may be replaced
        canary: settings of a canary rollout; None: all nodes at once
        resources: Ray resources of each instance
    """
    if not _NAME.fullmatch(new.name):
        return f"{new.name[:80]!r} is not a valid name of a model: use letters, digits, '.', '_' and '-'"
    try:
        check_instances(new.instances)
    except ValueError as error:
        return f"model {new.name!r}: {error}"
    if former is not None and not replace:
        return f"model {new.name!r} is already registered. Pass replace=True to replace it"
    why = "" if canary is None else _no_canary(former, resources)
    return f"model {new.name!r} cannot be rolled out with a canary: {why}" if why else ""


def check_instances(instances: int) -> None:
    """Validate a number of instances.

    Raises:
        ValueError: a fleet does not support this number
    """
    if not 1 <= instances <= MAX_INSTANCES:
        raise ValueError(f"instances={instances}: must be between 1 and {MAX_INSTANCES}")


def _no_canary(former: Optional[RegisteredModel], resources: dict[str, Any]) -> str:
    if former is None:
        return "there is no old version to compare it with"
    if former.rolling is not None:
        return "another rollout of this model is in progress. Wait for it, or roll it back"
    if former.resources != resources:
        return "its resources differ from those of the version that it replaces"
    return ""


def replace(former: RegisteredModel, model: RegisteredModel, canary: Optional[Canary]) -> None:
    """Let a new registration replace a model: gradually if there is a canary, otherwise on all nodes at the same
    time.
    """
    model.older = former.previous
    if canary is not None and model.digest != former.digest:
        model.rolling = Rolling(former.version(), canary)
        model.previous = former.previous
    else:  # this also ends a rollout in progress, whose version was never confirmed
        rolling = former.rolling
        model.previous = former.version() if rolling is None else rolling.former
    model.serial, model.retired = former.serial, [*former.holders, *former.retired]
    if former.resources == model.resources:
        model.holders, model.retired = list(former.holders), list(former.retired)


def roll_back(model: RegisteredModel) -> str:
    """Restore a model's previous version with its number of instances.

    Return an error message if there is none, otherwise "".
    """
    before = model.previous
    if before is None:
        return f"model {model.spec.name!r} has not been replaced since it was first registered"
    model.previous, model.older = model.version(), None
    model.use(before)
    _hold(model, before.resources)
    return ""


def scale(model: RegisteredModel, instances: int) -> None:
    """Change a model's number of instances. The change persists if a rollout in progress is rolled back."""
    model.spec = msgspec.structs.replace(model.spec, instances=instances)
    if model.rolling is not None:
        former = model.rolling.former
        former.spec = msgspec.structs.replace(former.spec, instances=instances)


def withdraw(model: RegisteredModel, why: str) -> None:
    """Restore the version that a model's last registration replaced, and the model's history."""
    before = model.previous
    assert before is not None
    model.become(before)
    model.previous, model.older, model.rollback_reason = model.older, None, why
    _hold(model, before.resources)


def settle(model: RegisteredModel) -> bool:
    """Once a model is served, discard the version that was kept in case of a withdrawal. Return whether there was
    one.
    """
    if model.rolling is not None or model.older is None:
        return False
    model.older = None
    return True


def _hold(model: RegisteredModel, resources: dict[str, Any]) -> None:
    if resources != model.resources:
        model.holders, model.retired = [], [*model.holders, *model.retired]
        model.resources = resources
