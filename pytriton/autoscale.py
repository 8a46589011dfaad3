"""Autoscaling of models: the number of instances follows the load."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from pytriton._protocol import messages
from pytriton._protocol.arguments import closest_keywords, plain
from pytriton.exceptions import PyTritonValidationError

__all__ = [
    "INSTANCES_PARAMETER",
    "Autoscale",
    "Instances",
    "Seconds",
    "autoscale_in",
    "autoscale_of",
    "instances_of_text",
]

#: A number of seconds, or text with a unit: "500ms", "30s", "10m", "1h".
Seconds = Union[int, float, str]

#: Parameter of a model configuration with the minimum and maximum number of instances.
INSTANCES_PARAMETER = "pytriton_instances"
#: Default of `idle_after`, in seconds.
_IDLE_AFTER_S = messages.Autoscale().idle_after_s
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RANGE = re.compile(r"(\d+)\s*(?::|-|\.\.)\s*(\d+)(?:\s*:\s*(\S.*))?")


@closest_keywords
@dataclass(frozen=True)
class Autoscale:
    """Settings that scale a model with its load, between `min` and `max` instances.

    Args:
        max: maximum number of instances
        min: minimum number of instances; with 0, the model is suspended when idle, and the next request resumes it
        target: target utilization of an instance (fraction of the time in which it is busy); above it, instances are
            added
        up_after: how long there must be too few instances before some are added
        down_after: how long there must be too many instances before some are removed
        idle_after: how long the model must be idle before it is suspended; requires min=0
        concurrency: batches or streams that an instance can process concurrently; more than 1 for `async def`
            callables
        weight: priority relative to other models if the machine lacks resources for all

    Raises:
        PyTritonValidationError: a value is invalid

    Example:
        >>> Autoscale(8, down_after="5m").to_message().down_after_s
        300.0
    """

    max: int
    min: int = 1
    target: float = 0.7
    up_after: Seconds = 2.0
    down_after: Seconds = 60.0
    idle_after: Optional[Seconds] = None
    concurrency: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        self.to_message()

    def to_message(self) -> messages.Autoscale:
        """Return the form that is sent to the daemon, with durations in seconds."""
        least, most = _whole("min", self.min, 0), _whole("max", self.max)
        if least > most:
            raise PyTritonValidationError(f"Autoscale: min={least} is more than max={most}.")
        if self.idle_after is not None and least > 0:
            raise PyTritonValidationError(
                f"Autoscale: idle_after={self.idle_after!r} requires min=0: with min={least}, the model is never suspended."
            )
        idle_after_s = (
            _IDLE_AFTER_S if self.idle_after is None else _seconds("idle_after", self.idle_after)
        )
        return messages.Autoscale(
            least,
            most,
            target=_number("target", self.target, 1.0),
            up_after_s=_seconds("up_after", self.up_after),
            down_after_s=_seconds("down_after", self.down_after),
            idle_after_s=idle_after_s,
            concurrency=_whole("concurrency", self.concurrency),
            weight=_number("weight", self.weight, 1000.0),
        )


#: A fixed number of instances, a (min, max) pair, or an `Autoscale`.
Instances = Union[int, "tuple[int, int]", Autoscale]


def autoscale_of(instances: Any) -> messages.Autoscale | None:
    """Return the autoscaling settings in `instances`; None for a fixed number of instances.

    Raises:
        PyTritonValidationError: `instances` is invalid
    """
    instances = plain(instances)
    if isinstance(instances, Autoscale):
        return instances.to_message()
    if isinstance(instances, (tuple, list)) and len(instances) == 2:
        return Autoscale(instances[1], instances[0]).to_message()
    if isinstance(instances, bool) or not isinstance(instances, int) or instances < 1:
        raise PyTritonValidationError(
            "instances has to be a whole number of 1 or more, a minimum and a maximum such as (1, 8), or "
            f"pytriton.Autoscale(...), got {instances!r}."
        )
    return None


def instances_of_text(text: str) -> Instances:
    """Parse the text form of a number of instances: "4", "1:8" (minimum and maximum), or "0:8:30m".

    The third part is the idle time after which the model is suspended.

    Raises:
        PyTritonValidationError: the text has none of these forms
    """
    word = text.strip()
    match = _RANGE.fullmatch(word)
    if match is not None:
        least, most, idle_after = int(match.group(1)), int(match.group(2)), match.group(3)
        given: Instances = (least, most)
        if idle_after is not None:
            given = Autoscale(most, least, idle_after=idle_after)
    elif word.isdecimal():
        given = int(word)
    else:
        raise PyTritonValidationError(
            f"{text!r} is not a number of instances. Use a number, such as 4; a minimum and a maximum, such "
            "as 1:8; or a minimum of 0, a maximum, and the idle time before the model is suspended, such as 0:8:30m."
        )
    autoscale_of(given)
    return given


def autoscale_in(config: Mapping[str, Any]) -> messages.Autoscale | None:
    """Return the autoscaling settings in a model configuration's parameter `pytriton_instances`; None if it is not set.

    Raises:
        PyTritonValidationError: the value is not a minimum and a maximum, such as "1:8"
    """
    said = config.get("parameters", {}).get(INSTANCES_PARAMETER)
    if said is None:
        return None
    text = str(said.get("string_value", ""))
    autoscale = autoscale_of(instances_of_text(text))
    if autoscale is None:
        raise PyTritonValidationError(
            f"{INSTANCES_PARAMETER} has to be a minimum and a maximum, such as 1:8, got {text!r}. "
            "For a fixed number, use instance_group."
        )
    return autoscale


def _whole(name: str, value: Any, from_: int = 1) -> int:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < from_:
        raise PyTritonValidationError(
            f"Autoscale: {name} has to be a whole number of {from_} or more, got {value!r}."
        )
    return value


def _number(name: str, value: Any, most: float) -> float:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise PyTritonValidationError(
            f"Autoscale: {name} has to be a number above 0, at most {most:g}, got {value!r}."
        )
    return float(value)


def _seconds(name: str, value: Any) -> float:
    seconds = math.nan
    value = plain(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str):
        match = _SPAN.fullmatch(value.strip())
        if match is not None:
            seconds = float(match.group(1)) * _UNITS[match.group(2) or "s"]
    if not 0 < seconds < math.inf:
        raise PyTritonValidationError(
            f'Autoscale: {name}={value!r} is not a duration. Pass seconds, or text such as "500ms", "30s" or "10m".'
        )
    return seconds
