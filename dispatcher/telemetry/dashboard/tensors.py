"""A model's inputs and outputs as its configuration declares them, and matching example data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytriton._protocol.config_datatypes import of_config

#: Types that JSON cannot represent (KServe v2), so curl can neither send nor receive them.
HALVES = ("FP16", "BF16")
#: Size used in examples for dimensions of any size.
_ANY = 1
#: Tensors with more elements are too large for an example to copy.
_MAX_EXAMPLE_ELEMENTS = 64


@dataclass(frozen=True)
class DeclaredTensor:
    """A declared input or output.

    Attributes:
        datatype: the protocol's type name: FP32, BYTES, …
        shape: including the batch axis; -1 where any size is allowed.
        optional: whether the input may be omitted.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def example_shape(self) -> tuple[int, ...]:
        """A valid concrete shape."""
        return tuple(_ANY if size < 0 else size for size in self.shape)

    def example_data(self) -> list[Any] | None:
        """Return zeros (or texts) for that shape as a flat list; None if there would be too many to read."""
        count = 1
        for size in self.example_shape:
            count *= size
        if count > _MAX_EXAMPLE_ELEMENTS:
            return None
        value: Any = {"BYTES": "text", "BOOL": False}.get(self.datatype, 0)
        if self.datatype.startswith(("FP", "BF")):
            value = 0.0
        return [value] * count

    def example_value(self) -> Any:
        """Return the same data in the form that `generate` expects: a single element without a list."""
        data = self.example_data() or []
        return data[0] if len(data) == 1 else data


def inputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the inputs of a model configuration in JSON form."""
    return _tensors(config, "input")


def outputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the outputs of a model configuration in JSON form."""
    return _tensors(config, "output")


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Return whether a request can have any number of responses."""
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))


def _tensors(config: Mapping[str, Any], kind: str) -> list[DeclaredTensor]:
    batched = int(config.get("max_batch_size") or 0) > 0
    return [
        DeclaredTensor(
            name=str(one.get("name", "")),
            datatype=of_config(str(one.get("data_type", ""))),
            shape=((-1,) if batched else ()) + tuple(int(size) for size in one.get("dims", [])),
            optional=bool(one.get("optional")),
        )
        for one in config.get(kind, [])
    ]


def has_halves(config: Mapping[str, Any]) -> bool:
    """Return whether any input or output cannot be sent as JSON."""
    return any(one.datatype in HALVES for one in (*inputs(config), *outputs(config)))


def example_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body for `generate_stream`: a value for each required input."""
    return {one.name: one.example_value() for one in inputs(config) if not one.optional}


def example_request(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid request in the protocol's JSON; inputs too large to read are empty lists."""
    return {
        "inputs": [
            {
                "name": one.name,
                "shape": list(one.example_shape),
                "datatype": one.datatype,
                "data": one.example_data() or [],
            }
            for one in inputs(config)
            if not one.optional
        ]
    }
