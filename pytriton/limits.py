"""Resource limits of a worker."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from pytriton._protocol import arguments, messages
from pytriton._protocol.arguments import closest_keywords
from pytriton.exceptions import PyTritonValidationError

__all__ = ["Limits"]

#: Bytes as a number, or as text with a unit: "500MB", "2GiB".
Size = Union[int, str]


@closest_keywords
@dataclass(frozen=True)
class Limits:
    """The resource limits of one worker; None means no limit. Sizes are bytes, or text with a unit such as "2GiB".

    Args:
        recycle_above: private memory above which a worker is recycled, for models that leak memory. It is checked
            after each batch, so memory that is freed within a batch does not count; no request fails.
            Default: 90 % of `memory_limit`
        memory_limit: maximum memory of a worker. An allocation that exceeds it raises MemoryError, and
            the worker is killed if it and its child processes together use more
        open_files: maximum number of open file descriptors
        processes: maximum number of child processes; a worker that exceeds it is killed with all of them
        cpus: numbers of the CPUs that the worker may run on (default: all)
        nice: increment of the worker's niceness: 10 lowers its priority, values below 0 require root

    Raises:
        PyTritonValidationError: a value is invalid

    Example:
        >>> Limits(recycle_above="2GiB", memory_limit="4GiB", cpus=[0, 1]).recycle_above
        '2GiB'
    """

    recycle_above: Size | None = None
    memory_limit: Size | None = None
    open_files: int | None = None
    processes: int | None = None
    cpus: Sequence[int] = ()
    nice: int = 0

    def __post_init__(self) -> None:
        self.to_message()

    def to_message(self) -> messages.Limits:
        """Return the form that is sent to the daemon, with sizes in bytes."""
        recycle, hard = (
            _size("recycle_above", self.recycle_above),
            _size("memory_limit", self.memory_limit),
        )
        if recycle is not None and hard is not None and recycle > hard:
            raise PyTritonValidationError(
                f"Limits: recycle_above={self.recycle_above!r} is more than memory_limit={self.memory_limit!r}: a worker "
                "would be killed before it could be recycled."
            )
        cpus = self.cpus
        if isinstance(cpus, str) or not isinstance(cpus, Sequence):
            raise PyTritonValidationError(
                f"Limits: cpus has to be a list of numbers, got {cpus!r}."
            )
        return messages.Limits(
            recycle_above=recycle,
            memory_limit=hard,
            open_files=_count("open_files", self.open_files, 16),
            processes=_count("processes", self.processes, 0),
            cpus=[_number("cpus", cpu, 0) for cpu in cpus],
            nice=_number("nice", self.nice, -20),
        )


def _size(name: str, value: Size | None) -> int | None:
    if value is None:
        return None
    try:
        count = arguments.parse_size(value)
    except ValueError:
        count = 0
    if count == 0:
        raise PyTritonValidationError(f"Limits: {name}={value!r} is not {arguments.ALLOWED}.")
    return count


def _count(name: str, value: int | None, least: int) -> int | None:
    return None if value is None else _number(name, value, least)


def _number(name: str, value: Any, least: int) -> int:
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise PyTritonValidationError(
            f"Limits: {name} has to be a whole number of {least} or more, got {value!r}."
        )
    return number
