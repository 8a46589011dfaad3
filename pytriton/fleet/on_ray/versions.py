"""The version of a model: after a registration, after a rollback, and after a registration is withdrawn.

Pure: each function changes a `Model`. The controller keeps what has come of it, and sees to its holders. A request's id
says what is to be withdrawn, and makes it harmless that Ray asks a controller again that died before it answered.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Optional

import msgspec

from pytriton._protocol import messages
from pytriton._protocol.registration_digest import registration_digest
from pytriton.fleet.canary import Canary
from pytriton.fleet.on_ray.environments import REQUEST_VARIABLE
from pytriton.fleet.on_ray.kept_state import Model, Rolling
from pytriton.fleet.on_ray.runtime_env import digest_with

#: Of one model: each is an actor that holds its place, and a worker.
MOST_INSTANCES = 10_000
#: A name is a part of those of actors and of keys, and of HAProxy's files. Daemons ask the same of it.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


def made(
    spec: messages.ModelSpec,
    payloads: list[bytes],
    resources: dict[str, Any],
    environment: bytes,
    request: str,
    former: Optional[Model] = None,
) -> Model:
    """Return a newly registered model, which holds nothing yet.

    It differs from the `former` one of its name: modules that workers import may have changed.
    """
    digest = digest_with(registration_digest(spec, payloads), environment)
    if former is not None and digest == former.digest:
        env = {**spec.world.env, REQUEST_VARIABLE: request or secrets.token_hex(8)}
        world = msgspec.structs.replace(spec.world, env=env)
        spec = msgspec.structs.replace(spec, world=world)
        digest = digest_with(registration_digest(spec, payloads), environment)
    return Model(spec, payloads, resources, [], digest, request=request, environment=environment)


def unusable(
    new: messages.ModelSpec,
    former: Optional[Model],
    replace: bool,
    canary: Optional[Canary],
    resources: dict[str, Any],
) -> str:
    """Return why a model cannot be registered; nothing where it can.

    Args:
        new: the model
        former: what there is of its name
        replace: that may be replaced
        canary: step by step
        resources: what Ray is to hold for each instance
    """
    if not _NAME.fullmatch(new.name):
        return f"{new.name[:80]!r} cannot be a model's name: letters, digits, '.', '_' and '-'"
    try:
        check_instances(new.instances)
    except ValueError as error:
        return f"model {new.name!r}: {error}"
    if former is not None and not replace:
        return f"model {new.name!r} is registered already; pass replace=True"
    why = "" if canary is None else _no_canary(former, resources)
    return f"model {new.name!r} cannot be rolled out step by step: {why}" if why else ""


def check_instances(instances: int) -> None:
    """Check a number of instances.

    Raises:
        ValueError: a fleet has not so many
    """
    if not 1 <= instances <= MOST_INSTANCES:
        raise ValueError(f"instances={instances}: a fleet takes 1 to {MOST_INSTANCES} of a model")


def _no_canary(former: Optional[Model], resources: dict[str, Any]) -> str:
    if former is None:
        return "there is none yet to compare it with"
    if former.rolling is not None:
        return "another new version of it is on its way; wait, or roll it back"
    if former.resources != resources:
        return "it holds other resources than the version that it is to replace"
    return ""


def replace(former: Model, model: Model, canary: Optional[Canary]) -> None:
    """Have a newly registered model take the place of a former one; with a canary, step by step."""
    model.older = former.previous
    if canary is not None and model.digest != former.digest:
        model.rolling = Rolling(former.version(), canary)
        model.previous = former.previous
    else:  # also a rollout that is under way ends by this: what was being rolled out was never there to stay
        rolling = former.rolling
        model.previous = former.version() if rolling is None else rolling.former
    model.serial, model.retired = former.serial, [*former.holders, *former.retired]
    if former.resources == model.resources:
        model.holders, model.retired = list(former.holders), list(former.retired)


def roll_back(model: Model) -> str:
    """Have a model be what it was before it was replaced, with as many instances; returns why not, or nothing."""
    before = model.previous
    if before is None:
        return f"model {model.spec.name!r} has not been replaced since it was first registered"
    model.previous, model.older = model.version(), None
    model.use(before)
    _hold(model, before.resources)
    return ""


def scale(model: Model, instances: int) -> None:
    """Have a model have another number of instances, whether or not a rollout goes well."""
    model.spec = msgspec.structs.replace(model.spec, instances=instances)
    if model.rolling is not None:
        former = model.rolling.former
        former.spec = msgspec.structs.replace(former.spec, instances=instances)


def withdraw(model: Model, why: str) -> None:
    """Have a model be again what it was before it was registered last, which was a replacement; and its history too."""
    before = model.previous
    assert before is not None
    model.become(before)
    model.previous, model.older, model.taken_back = model.older, None, why
    _hold(model, before.resources)


def settle(model: Model) -> bool:
    """Forget what only a withdrawal needs, for the model is served; whether there was anything."""
    if model.rolling is not None or model.older is None:
        return False
    model.older = None
    return True


def _hold(model: Model, resources: dict[str, Any]) -> None:
    if resources != model.resources:
        model.holders, model.retired = [], [*model.holders, *model.retired]
        model.resources = resources
