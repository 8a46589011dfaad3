"""A loaded model file: the tensors that the file describes, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the dispatcher uses this module, and needs no numpy
    import numpy.typing as npt
    from typing_extensions import TypeAlias

Array: TypeAlias = "npt.NDArray[Any]"
#: From inputs by name, in the configuration's order, to the outputs by name.
Infer: TypeAlias = "Callable[[dict[str, Array]], Mapping[str, Array]]"


class FormatError(Exception):
    """A model's file, or what its configuration says about it, cannot be served; says why."""


class TensorInfo(NamedTuple):
    """A tensor as a file tells of it.

    Args:
        name: its name
        datatype: Triton's, such as "FP32"
        shape: with the batch axis if there is one; -1 is any size
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Loaded:
    """A loaded model file.

    Args:
        inputs: None when the file does not tell; then config.pbtxt has to
        outputs: the same
        infer: runs it
        batching: the first axis of all tensors is the batch's; False: nobody knows
    """

    inputs: Sequence[TensorInfo] | None
    outputs: Sequence[TensorInfo] | None
    infer: Infer
    batching: bool = False


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return one of the `parameters` of a configuration."""
    return str(config.get("parameters", {}).get(name, {}).get("string_value", default))


def flag(config: Mapping[str, Any], name: str) -> bool:
    """Return one of the `parameters` that is true or false; false when it is not there."""
    return parameter(config, name).strip().lower() in ("true", "1", "yes", "on")


def names_of(config: Mapping[str, Any], what: str) -> list[str]:
    """Return the names of the configuration's "input" or "output" tensors, in order."""
    return [str(entry["name"]) for entry in config.get(what, ())]
