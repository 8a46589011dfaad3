"""The Ray resources of an instance, validated before they are sent to the controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pytriton._protocol.scalars import plain
from pytriton.exceptions import PyTritonBadParameterError

#: The options of an actor of Ray that say what it holds, and where it may be.
ALLOWED = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector")
_AMOUNTS = ("num_cpus", "num_gpus", "memory")
#: Ray assigns a fraction of a unit, or whole units.
_WHOLE = ("num_cpus", "num_gpus")
_DEFAULT = {"num_cpus": 1}


def checked(resources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the resources for Ray; one CPU by default.

    Raises:
        PyTritonBadParameterError: Ray does not support the resource or the amount
    """
    if resources is None:
        return dict(_DEFAULT)
    if not isinstance(resources, Mapping):
        raise PyTritonBadParameterError(
            f'resources={resources!r}: give a dict, such as {{"num_gpus": 1}}'
        )
    held = dict(resources)
    if "runtime_env" in held:
        raise PyTritonBadParameterError("resources has runtime_env: pass it as runtime_env=")
    unknown = sorted(map(str, set(held) - set(ALLOWED)))
    if unknown:
        raise PyTritonBadParameterError(
            f"resources has {', '.join(unknown)}: Ray can hold {', '.join(ALLOWED)} for an instance. Custom resources "
            f'go into a dict of their own: {{"resources": {{"{unknown[0]}": 1}}}}.'
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
    _check(name, value, number and 0 <= value < math.inf, "a number from 0")
    above = value > 1 and value != int(value)
    _check(name, value, not (whole and above), "a part of one, or a whole number")
    return int(value) if value == int(value) else float(value)


def _text(what: str, value: Any) -> str:
    _check(what, value, isinstance(value, str) and bool(value), "some text")
    return str(value)


def _check(name: str, value: Any, holds: bool, what: str) -> None:
    if not holds:
        raise PyTritonBadParameterError(f"resources: {name}={value!r}: it takes {what}")
