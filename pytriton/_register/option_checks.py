"""The checks of an option's value: each raises PyTritonValidationError for one that the option cannot have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pytriton._protocol import sizes
from pytriton.autoscale import autoscale_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits
from pytriton.openai.card import card_of

#: Is given the option's name, for the error, and the value.
Check = Callable[[str, Any], None]


def seconds(name: str, value: Any) -> None:
    """Refuse all but a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise PyTritonValidationError(
            f"{name} has to be a number of seconds above 0, got {value!r}."
        )


def truth(name: str, value: Any) -> None:
    """Refuse all but True and False: "no" and "false" would count as true."""
    if not isinstance(value, bool):
        raise PyTritonValidationError(f"{name} has to be True or False, got {value!r}.")


def whole(least: int) -> Check:
    """Return a check for whole numbers."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PyTritonValidationError(
                f"{name} has to be a whole number from {least}, got {value!r}."
            )

    return check


def instances(name: str, value: Any) -> None:
    """Refuse all but what says how many workers there are, or between how many."""
    autoscale_of(value)


def one_of(*allowed: str) -> Check:
    """Return a check for some words."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise PyTritonValidationError(f"{name} has to be {words}, got {value!r}.")

    return check


def limits(name: str, value: Any) -> None:
    """Refuse all but limits of a worker."""
    if not isinstance(value, Limits):
        raise PyTritonValidationError(f"{name} has to be pytriton.Limits(...), got {value!r}.")


def size(name: str, value: Any) -> None:
    """Refuse all but a number of bytes above 0, such as "2GiB"."""
    if not in_bytes(value):
        raise PyTritonValidationError(f"{name} has to be {sizes.ALLOWED}, got {value!r}.")


def in_bytes(value: Any) -> int | None:
    """Return the number of bytes that was given; 0 for what is none."""
    try:
        return None if value is None else sizes.parse_size(value)
    except ValueError:
        return 0


def function(name: str, value: Any) -> None:
    """Refuse all but a function, or anything else that can be called."""
    if not callable(value):
        raise PyTritonValidationError(
            f"{name} has to be a function that takes the loaded callable, got {value!r}."
        )


def openai(name: str, value: Any) -> None:
    """Refuse all but what says how a model is served behind the OpenAI API."""
    card_of(value)


def trace_settings(name: str, value: Any) -> None:
    """Refuse all but a list of settings in the form of tritonserver's option."""
    whole_list = isinstance(value, (list, tuple))
    if not whole_list or not all(isinstance(one, str) and "=" in one for one in value):
        raise PyTritonValidationError(
            f"{name} has to be a list of settings such as 'opentelemetry,url=http://...', got {value!r}."
        )
