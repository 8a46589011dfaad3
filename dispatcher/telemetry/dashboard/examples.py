"""Creates examples for a model: requests with valid data, and client code to copy."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from pytriton._protocol.datatypes import of_config
from pytriton._protocol.numpy_types import NUMERIC

#: Data types that KServe's JSON cannot represent, so that curl can neither send nor receive them.
HALVES = ("FP16", "BF16")
#: Size in examples of dimensions that may have any size.
_ANY = 1
#: Maximum number of elements of a tensor in an example.
_MAX_EXAMPLE_ELEMENTS = 64


@dataclass(frozen=True)
class DeclaredTensor:
    """An input or output that a model declares.

    Attributes:
        name: its name
        datatype: name of its data type in KServe's protocol, such as FP32 or BYTES
        shape: its shape, including the batch axis; -1 where any size is allowed
        optional: whether requests may omit it
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def example_shape(self) -> tuple[int, ...]:
        """A valid shape for an example: the declared shape, with each -1 replaced by a number."""
        return tuple(_ANY if size < 0 else size for size in self.shape)

    def example_data(self) -> list[Any] | None:
        """Return zeros (or texts) for `example_shape` as a flat list; None if the tensor is too large for an example."""
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
        """Return `example_data` in the form that Triton's generate extension expects: a single element without a list."""
        data = self.example_data() or []
        return data[0] if len(data) == 1 else data


def inputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the inputs that a model configuration (in JSON form) declares."""
    return _tensors(config, "input")


def outputs(config: Mapping[str, Any]) -> list[DeclaredTensor]:
    """Return the outputs that a model configuration (in JSON form) declares."""
    return _tensors(config, "output")


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Return whether the model is decoupled: a request can have any number of responses."""
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
    """Return whether any input or output has a data type that JSON cannot represent."""
    return any(one.datatype in HALVES for one in (*inputs(config), *outputs(config)))


def example_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example body for `generate_stream`, with a value for each required input."""
    return {one.name: one.example_value() for one in inputs(config) if not one.optional}


def example_request(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example request in KServe's JSON format. The data of inputs that are too large for an example is
    left empty.
    """
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


# ── client code: curl, tritonclient, and our own client ──────────────────────────────────────────


def snippets(name: str, config: Mapping[str, Any], http_url: str) -> dict[str, str]:
    """Return example code by client name; empty if HTTP is disabled or no client can call the model.

    Args:
        name: name of the model
        config: configuration of the model, in JSON form
        http_url: URL of Triton's HTTP endpoint, for example "http://127.0.0.1:8000"; "" if it is disabled
    """
    if not http_url:
        return {}
    code = {} if has_halves(config) else {"curl": _curl(name, config, http_url)}
    if not is_decoupled(config):
        code["tritonclient"] = _tritonclient(name, config, http_url)
        code["pytriton"] = _pytriton(name, config, http_url)
    return code


def _curl(name: str, config: Mapping[str, Any], http_url: str) -> str:
    path = f"{http_url}/v2/models/{quote(name, safe='')}"
    if is_decoupled(config):
        body = json.dumps(example_values(config))
        return f"curl -sN {shlex.quote(path + '/generate_stream')} -d {shlex.quote(body)}"
    body = json.dumps(example_request(config))
    return f"curl -s {shlex.quote(path + '/infer')} -d {shlex.quote(body)}"


def _array(one: DeclaredTensor) -> str:
    """Return a Python expression for an example array of the tensor's shape and data type."""
    shape = one.example_shape
    if one.datatype == "BYTES":
        return f'np.full({shape!r}, b"text", dtype=object)'
    return f"np.zeros({shape!r}, {_numpy(one.datatype)})"


def _numpy(datatype: str) -> str:
    """Return the name of the numpy dtype that tritonclient expects. For BF16, which numpy lacks, it is float32."""
    if datatype == "BF16" or datatype not in NUMERIC:
        return '"float32"'
    return f'"{NUMERIC[datatype].name}"'


def _tritonclient(name: str, config: Mapping[str, Any], http_url: str) -> str:
    lines = [
        "import numpy as np",
        "import tritonclient.http as triton",
        "",
        f"client = triton.InferenceServerClient({urlsplit(http_url).netloc!r})",
        "inputs = []",
    ]
    for one in inputs(config):
        if one.optional:
            continue
        lines += [
            f"array = {_array(one)}",
            f"inputs.append(triton.InferInput({one.name!r}, array.shape, {one.datatype!r}))",
            "inputs[-1].set_data_from_numpy(array)",
        ]
    lines.append(f"result = client.infer({name!r}, inputs)")
    lines += [f"print(result.as_numpy({one.name!r}))" for one in outputs(config)]
    return "\n".join(lines)


def _pytriton(name: str, config: Mapping[str, Any], http_url: str) -> str:
    batched = int(config.get("max_batch_size") or 0) > 0
    arguments = ", ".join(
        f"{one.name!r}: {_array(one)}" for one in inputs(config) if not one.optional
    )
    method = "infer_batch" if batched else "infer_sample"
    return "\n".join(
        [
            "import numpy as np",
            "from pytriton.client import ModelClient",
            "",
            f"with ModelClient({http_url!r}, {name!r}) as client:",
            f"    print(client.{method}(**{{{arguments}}}))",
        ]
    )
