"""The requests that tests insert where a document's example has `...`; they print the answers."""

from __future__ import annotations

import dataclasses
import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton import model_config
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.proxy.types import Request

if TYPE_CHECKING:
    from pytriton.triton import Triton


def say(*what: object) -> None:
    """Print a line with a single write: unbuffered, `print` writes in parts, and log lines may come between."""
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


def ask(triton: Triton, name: str, *batches: Any) -> None:
    """Print a model's answer."""
    say(name, answer(triton.http_url, name, *batches))


def answer(url: str, name: str, *batches: Any) -> dict[str, Any]:
    """Return a model's outputs for one batch per input over HTTP, with the server's names and types."""
    model = f"{url}/v2/models/{name}"
    inputs = [
        {
            "name": tensor["name"],
            "datatype": tensor["datatype"],
            "shape": np.array(batch).shape,
            "data": batch,
        }
        for tensor, batch in zip(_json(model)["inputs"], batches)
    ]
    outputs = _json(f"{model}/infer", {"inputs": inputs})["outputs"]
    return {one["name"]: np.reshape(one["data"], one["shape"]).tolist() for one in outputs}


def _json(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=60) as response:
        return json.loads(response.read())


def call(infer_fn: Any) -> None:
    """Call a decorated callable without a server, with valid and invalid inputs."""
    good = infer_fn([Request({"x": np.ones((2, 1), np.float32)})])
    say("called", [result["x"].tolist() for result in good])
    try:
        infer_fn([Request({"x": -np.ones((1, 1), np.float32)})])
    except PyTritonUnrecoverableError as error:
        say("unrecoverable:", error, "because of", repr(error.__cause__))


def show_specs(*tensors: Any) -> None:
    """Print tensors: name, type, shape."""
    for tensor in tensors:
        one = tensor[0] if isinstance(tensor, tuple) else tensor  # the document has `Tensor(...),`
        say("tensor", one.name, np.dtype(one.dtype).name, one.shape)


def compare(documented: type) -> None:
    """Print the fields of a documented class whose defaults differ from those of the real one."""
    real = {
        field.name: field.default
        if field.default_factory is dataclasses.MISSING
        else field.default_factory()
        for field in dataclasses.fields(getattr(model_config, documented.__name__))
    }
    wanted = {name: getattr(documented, name) for name in documented.__annotations__}
    other = [name for name, value in wanted.items() if real.get(name, "none") != value]
    say(documented.__name__, len(wanted), "fields, other here:", other)
