"""`Signature`: the inputs and outputs of a model, and the validation of a call's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pytriton._protocol.datatypes import of_config
from pytriton._protocol.numpy_types import lost_by_cast
from pytriton.model_config.dtypes import to_numpy_dtype
from pytriton.runner.arrays import Array, as_bytes, to_array
from pytriton.runner.errors import RunnerArgumentError

__all__ = ["InputSpec", "Signature"]


class InputSpec(NamedTuple):
    """An input of a model. `dims` does not include the batch axis; -1 is a dimension of any size."""

    name: str
    datatype: str
    dtype: np.dtype[Any]  #: dtype of arrays for it
    dims: tuple[int, ...]
    optional: bool
    scalar: bool  #: whether the callable receives it without its axis of length 1


class Signature:
    """The inputs and outputs of one model, in the order of its configuration.

    Args:
        config: the model's configuration as JSON
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.model = str(config["name"])
        self.max_batch_size = int(config.get("max_batch_size", 0))
        self.decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        self.inputs = [_spec(entry) for entry in config.get("input", ())]
        self.outputs = [str(entry["name"]) for entry in config.get("output", ())]
        self._by_name = {spec.name: spec for spec in self.inputs}

    def bind(self, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the inputs of a call.

        Return arrays by name, ready to be sent; tritonclient's InferInput objects are unchanged.

        Raises:
            RunnerArgumentError: inputs are passed both by position and by name, there are too few or too many, a name
                is unknown, or a value has the wrong type or shape.
        """
        given = self._given(positional, named)
        bound = {
            name: value if _is_ready(value) else self._checked(self._by_name[name], value)
            for name, value in given.items()
        }
        if self.max_batch_size:
            self._check_batch(bound)
        return bound

    def _given(self, positional: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        if positional and named:
            raise RunnerArgumentError(
                f"Inputs of model {self.model!r} can be passed either by position or by name, not both: got "
                f"{len(positional)} by position and {', '.join(named)} by name"
            )
        required = [spec.name for spec in self.inputs if not spec.optional]
        if named or not positional:
            unknown = [name for name in named if name not in self._by_name]
            if unknown:
                raise RunnerArgumentError(
                    f"Model {self.model!r} has no input {', '.join(map(repr, unknown))}; its inputs are "
                    f"{self._listed()}"
                )
            missing = [name for name in required if name not in named]
            if missing:
                raise RunnerArgumentError(
                    f"Model {self.model!r} requires the input {', '.join(map(repr, missing))}; its inputs are "
                    f"{self._listed()}"
                )
            return named
        names = [spec.name for spec in self.inputs]
        if len(positional) > len(names) or any(
            name not in names[: len(positional)] for name in required
        ):
            raise RunnerArgumentError(
                f"Model {self.model!r} has {len(names)} inputs ({self._listed()}), got {len(positional)}"
            )
        return dict(zip(names, positional))

    def _checked(self, spec: InputSpec, value: Any) -> Array:
        array = to_array(spec.name, value)
        if spec.datatype == "BYTES":
            array = as_bytes(spec.name, array)
        elif array.dtype != spec.dtype:
            array = _converted(spec, array)
        return self._shaped(spec, array)

    def _shaped(self, spec: InputSpec, array: Array) -> Array:
        batching = self.max_batch_size > 0
        wanted = (-1, *spec.dims) if batching else spec.dims
        if _fits(array.shape, wanted):
            return array
        # A single sample has no leading axis, which is added if that axis may have any size.
        if wanted and wanted[0] == -1 and _fits((1, *array.shape), wanted):
            return array[np.newaxis]
        single = (1,) * len(wanted)
        if not array.shape and _fits(single, wanted):  # a single number or text
            return array.reshape(single)
        if spec.scalar and _fits((*array.shape, 1), wanted):
            return array[..., np.newaxis]
        shown = "the batch, then " if batching else ""
        raise RunnerArgumentError(
            f"Input {spec.name!r} of model {self.model!r} has the shape {list(array.shape)}, which does not "
            f"match {shown}{list(spec.dims)} (-1 is any size)"
        )

    def _check_batch(self, bound: Mapping[str, Any]) -> None:
        sizes = {
            name: array.shape[0] for name, array in bound.items() if isinstance(array, np.ndarray)
        }
        if len(set(sizes.values())) > 1:
            given_sizes = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise RunnerArgumentError(
                f"The inputs of model {self.model!r} have different batch sizes ({given_sizes})"
            )
        size = next(iter(sizes.values()), 0)
        if size > self.max_batch_size:
            raise RunnerArgumentError(
                f"Model {self.model!r} accepts batches of at most {self.max_batch_size} rows, got {size}"
            )

    def _listed(self) -> str:
        return ", ".join(
            f"{spec.name} ({spec.datatype} {list(spec.dims)}{', optional' if spec.optional else ''})"
            for spec in self.inputs
        )


def _spec(entry: Mapping[str, Any]) -> InputSpec:
    datatype = of_config(str(entry["data_type"]))
    return InputSpec(
        name=str(entry["name"]),
        datatype=datatype,
        dtype=to_numpy_dtype(datatype),
        dims=tuple(int(size) for size in entry.get("dims", ())),
        optional=bool(entry.get("optional", False)),
        scalar=entry.get("reshape") is not None and not entry["reshape"].get("shape"),
    )


def _is_ready(value: Any) -> bool:
    """Return whether a value is a tritonclient InferInput, which already has a name, type and shape."""
    return type(value).__name__ == "InferInput" and hasattr(value, "set_data_from_numpy")


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    if len(shape) != len(wanted):
        return False
    for size, one in zip(shape, wanted):  # noqa: SIM110 (a generator takes three times as long)
        if one != -1 and size != one:
            return False
    return True


def _converted(spec: InputSpec, array: Array) -> Array:
    """Convert an array to the input's type.

    Numbers are converted only within their kind, for example from float64 to float32.

    Raises:
        RunnerArgumentError: the kind differs, or a number is out of range.
    """
    dtype = spec.dtype
    if array.dtype.kind == "O" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise RunnerArgumentError(
            f"Input {spec.name!r} takes {spec.datatype} ({dtype}), got {array.dtype}: convert it with "
            f".astype({dtype.name!r})"
        )
    lost = lost_by_cast(array, dtype)
    if lost is not None:
        raise RunnerArgumentError(f"Input {spec.name!r} takes {spec.datatype}: {lost}")
    return array.astype(dtype)
