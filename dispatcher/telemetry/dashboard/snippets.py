"""Client code to copy for a model: curl, tritonclient, and our own client."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from pytriton._protocol.datatypes import NUMERIC
from pytriton.dispatcher.telemetry.dashboard.tensors import (
    DeclaredTensor,
    example_request,
    example_values,
    has_halves,
    inputs,
    is_decoupled,
    outputs,
)


def snippets(name: str, config: Mapping[str, Any], http_url: str) -> dict[str, str]:
    """Return the code by client name; empty if HTTP is disabled or none of these clients can call the model.

    Args:
        name: name of the model
        config: its configuration in JSON form
        http_url: URL of Triton's HTTP endpoint, for example "http://127.0.0.1:8000"
    """
    if not http_url:
        return {}
    found = {} if has_halves(config) else {"curl": _curl(name, config, http_url)}
    if not is_decoupled(config):
        found["tritonclient"] = _tritonclient(name, config, http_url)
        found["pytriton"] = _pytriton(name, config, http_url)
    return found


def _curl(name: str, config: Mapping[str, Any], http_url: str) -> str:
    path = f"{http_url}/v2/models/{quote(name, safe='')}"
    if is_decoupled(config):
        body = json.dumps(example_values(config))
        return f"curl -sN {shlex.quote(path + '/generate_stream')} -d {shlex.quote(body)}"
    body = json.dumps(example_request(config))
    return f"curl -s {shlex.quote(path + '/infer')} -d {shlex.quote(body)}"


def _array(one: DeclaredTensor) -> str:
    """Return a Python expression for an array of the tensor's shape and type."""
    shape = one.example_shape
    if one.datatype == "BYTES":
        return f'np.full({shape!r}, b"text", dtype=object)'
    return f"np.zeros({shape!r}, {_numpy(one.datatype)})"


def _numpy(datatype: str) -> str:
    """Return the dtype that tritonclient expects: float32 for BF16, which numpy lacks."""
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
    given = ", ".join(f"{one.name!r}: {_array(one)}" for one in inputs(config) if not one.optional)
    method = "infer_batch" if batched else "infer_sample"
    return "\n".join(
        [
            "import numpy as np",
            "from pytriton.client import ModelClient",
            "",
            f"with ModelClient({http_url!r}, {name!r}) as client:",
            f"    print(client.{method}(**{{{given}}}))",
        ]
    )
