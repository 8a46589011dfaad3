"""A loaded model file: the tensors that the file describes, and the function that runs the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # the dispatcher uses this module without numpy
    import numpy.typing as npt
    from typing_extensions import TypeAlias

Array: TypeAlias = "npt.NDArray[Any]"
#: Runs a model: inputs by name, in the order of the configuration, to outputs by name.
Infer: TypeAlias = "Callable[[dict[str, Array]], Mapping[str, Array]]"


class FormatError(Exception):
    """A model cannot be served because of its file or its configuration; the text says why."""


class TensorInfo(NamedTuple):
    """A tensor as described by a file.

    Args:
        name: name of the tensor
        datatype: Triton's data type, such as "FP32"
        shape: shape with the batch axis, if any; -1 stands for any size
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LoadedFile:
    """A loaded model file.

    Args:
        inputs: the inputs; None if the file does not describe them, so that config.pbtxt must
        outputs: the outputs; None if the file does not describe them
        infer: runs the model
        batching: True if the first axis of all tensors is known to be the batch axis
    """

    inputs: Sequence[TensorInfo] | None
    outputs: Sequence[TensorInfo] | None
    infer: Infer
    batching: bool = False


def parameter(config: Mapping[str, Any], name: str, default: str = "") -> str:
    """Return the text of an entry in a configuration's `parameters`; `default` if it is missing."""
    return str(config.get("parameters", {}).get(name, {}).get("string_value", default))


def flag(config: Mapping[str, Any], name: str) -> bool:
    """Return a boolean entry of a configuration's `parameters`; False if it is missing."""
    return parameter(config, name).strip().lower() in ("true", "1", "yes", "on")


def names_of(config: Mapping[str, Any], what: str) -> list[str]:
    """Return the names of a configuration's tensors, in order; `what` is "input" or "output"."""
    return [str(entry["name"]) for entry in config.get(what, ())]
