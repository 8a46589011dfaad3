"""Checks of option values. Each raises PyTritonValidationError for an invalid value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pytriton._protocol import sizes
from pytriton.autoscale import autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits
from pytriton.openai.card import card_of

#: Takes the option's name, for the error, and the value.
Check = Callable[[str, Any], None]


def seconds(name: str, value: Any) -> None:
    """Refuse anything but a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PyTritonValidationError(f"{name} must be a number of seconds above 0, got {value!r}.")


def truth(name: str, value: Any) -> None:
    """Refuse anything but True and False: the strings "no" and "false" would count as true."""
    if not isinstance(value, bool):
        raise PyTritonValidationError(f"{name} must be True or False, got {value!r}.")


def whole(least: int) -> Check:
    """Return a check for integers of at least `least`."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PyTritonValidationError(
                f"{name} must be a whole number from {least}, got {value!r}."
            )

    return check


def instances(name: str, value: Any) -> None:
    """Refuse anything but a number of instances, or the bounds of one."""
    autoscale_of(value)


def one_of(*allowed: str) -> Check:
    """Return a check for a fixed set of words."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise PyTritonValidationError(f"{name} must be {words}, got {value!r}.")

    return check


def limits(name: str, value: Any) -> None:
    """Refuse anything but `Limits`."""
    if not isinstance(value, Limits):
        raise PyTritonValidationError(f"{name} must be pytriton.Limits(...), got {value!r}.")


def size(name: str, value: Any) -> None:
    """Refuse anything but a number of bytes above 0, such as "2GiB"."""
    if not in_bytes(value):
        raise PyTritonValidationError(f"{name} must be {sizes.ALLOWED}, got {value!r}.")


def in_bytes(value: Any) -> int | None:
    """Return the number of bytes; 0 if the value is not a size."""
    try:
        return None if value is None else sizes.parse_size(value)
    except ValueError:
        return 0


def function(name: str, value: Any) -> None:
    """Refuse anything but a callable."""
    if not callable(value):
        raise PyTritonValidationError(
            f"{name} must be a function that takes the loaded callable, got {value!r}."
        )


def openai(name: str, value: Any) -> None:
    """Refuse anything but a description of how a model is served behind the OpenAI API."""
    card_of(value)


def trace_settings(name: str, value: Any) -> None:
    """Refuse anything but a list of settings in the form of tritonserver's option."""
    whole_list = isinstance(value, (list, tuple))
    if not whole_list or not all(isinstance(one, str) and "=" in one for one in value):
        raise PyTritonValidationError(
            f"{name} must be a list of settings such as 'opentelemetry,url=http://...', got {value!r}."
        )
