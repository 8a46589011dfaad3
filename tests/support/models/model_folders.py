"""Folders of Triton Python models, created for one test."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.models.inference import Running, infer_once

#: One text in, one text out.
CONFIG = """
backend: "python"
input [ { name: "what", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "told", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""
#: A model that evaluates its input as an expression, with `self` and `args`.
CODE = """
import os, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.args = args
{initialize}

    def execute(self, requests):
        responses = []
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "what").as_numpy()[0].decode()
            told = str(eval(what)).encode()
            told = pb_utils.Tensor("told", np.array([told], np.object_))
            responses.append(pb_utils.InferenceResponse([told]))
        return responses
{more}
"""


def make_model(
    folder: Path, *, initialize: str = "pass", more: str = "", config: str = CONFIG
) -> Path:
    """Write a model's folder and return it.

    Args:
        folder: the folder to create
        initialize: statements, one per line
        more: members of the class, indented
        config: config.pbtxt
    """
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    lines = "\n".join(f"        {line}" for line in initialize.splitlines())
    (folder / "1" / "model.py").write_text(
        CODE.replace("{initialize}", lines).replace("{more}", more)
    )
    return folder


def ask(server: Running, model: str, what: str, protocol: str = "http") -> str:
    """Send `what` to a model of `CODE`, and return its answer."""
    text = np.array([what.encode()], np.object_)
    told: bytes = infer_once(server, model, {"what": text}, protocol)["told"][0]
    return told.decode()
