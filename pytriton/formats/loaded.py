"""A loaded model file: the tensors that the file describes, and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the dispatcher uses this module without numpy
    import numpy.typing as npt
    from typing_extensions import TypeAlias

Array: TypeAlias = "npt.NDArray[Any]"
#: Maps inputs by name, in the configuration's order, to outputs by name.
Infer: TypeAlias = "Callable[[dict[str, Array]], Mapping[str, Array]]"


class FormatError(Exception):
    """A model's file or its configuration cannot be served; the message gives the reason."""


class TensorInfo(NamedTuple):
    """A tensor as described by a file.

    Args:
        name: name of the tensor
        datatype: Triton's data type, such as "FP32"
        shape: including the batch axis, if any; -1 is any size
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LoadedFile:
    """A loaded model file.

    Args:
        inputs: None if the file does not describe them; then config.pbtxt must
        outputs: likewise
        infer: runs the model
        batching: whether the first axis of all tensors is the batch axis; False: unknown
    """

    inputs: Sequence[TensorInfo] | None
    outputs: Sequence[TensorInfo] | None
    infer: Infer
    batching: bool = False


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return one of the `parameters` of a configuration."""
    return str(config.get("parameters", {}).get(name, {}).get("string_value", default))


def flag(config: Mapping[str, Any], name: str) -> bool:
    """Return a boolean entry of the `parameters`; false if missing."""
    return parameter(config, name).strip().lower() in ("true", "1", "yes", "on")


def names_of(config: Mapping[str, Any], what: str) -> list[str]:
    """Return the names of the configuration's "input" or "output" tensors, in order."""
    return [str(entry["name"]) for entry in config.get(what, ())]
