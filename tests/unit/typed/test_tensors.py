"""Tensors of the results of typed functions."""

from __future__ import annotations

import sys
import types
from typing import Annotated, Any

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.typed.markers import MediaType
from pytriton.typed.signature import signature_of
from pytriton.typed.tensors import RESULT, TensorCodec, tensor_codec


def codec_of(annotation: Any) -> TensorCodec:
    """Return the codec of a function with this annotation of its result."""

    def function(n: int = 0) -> Any: ...

    function.__annotations__["return"] = annotation
    codec = tensor_codec(signature_of(function))
    assert codec is not None
    return codec


@pytest.mark.parametrize(
    ("annotation", "result", "row"),
    [
        (bytes, b"\0", [b"\0"]),
        (bytes, "text", [b"text"]),
        (Annotated[bytes, MediaType("text/html")], "hé", ["hé".encode()]),
        (bytearray, bytearray(b"ab"), [b"ab"]),
        (Annotated[np.ndarray, Tensor((-1,), bytes)], np.array(["a", "b"]), ["a", "b"]),
        (Annotated[np.ndarray, Tensor((-1,), bytes)], np.array([b"a"], object), [b"a"]),
    ],
)
def test_texts_and_bytes_are_sent_unchanged(annotation: Any, result: Any, row: list[Any]) -> None:
    assert codec_of(annotation).encode([result], [RESULT])[RESULT].tolist() == [row]


def test_a_worker_need_not_know_the_names_in_the_annotations_of_pydantic() -> None:
    pytest.importorskip("pydantic")
    script = types.ModuleType("script_of_the_registrant")
    sys.modules[script.__name__] = script
    try:
        exec(
            "from __future__ import annotations\n"
            "from typing import Literal\n"
            "from pydantic import BaseModel\n"
            "class Out(BaseModel):\n"
            "    score: float\n"
            "    kind: Literal['a', 'b']\n",
            vars(script),
        )
        result = script.Out(score=0.5, kind="a")
        del script.Literal  # as in the worker, which gets only the class
        outputs = codec_of(script.Out).encode([result], ["score", "kind"])
    finally:
        del sys.modules[script.__name__]
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "score": [[0.5]],
        "kind": [["a"]],
    }
