"""Exceptions that cannot be printed or are too long for gRPC: the worker survives, clients get an error."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.inference import PROTOCOLS, Inference
from support.models.stream_client import Streaming
from support.real_daemon import RunningDaemon, eventually
from tritonclient.utils import InferenceServerException

from pytriton.exceptions import RegistrationError
from pytriton.model_config import ModelConfig, Tensor

WHAT = [Tensor(name="what", dtype=bytes, shape=(1,))]
REPORTED = [Tensor(name="told", dtype=bytes, shape=(1,))]
#: gRPC's implementations take no more, headers' names and all (its soft limit).
MAX_BYTES = 8192

SHOWN = {
    "str": "Unprintable: (no text available: __str__ raised ZeroDivisionError)",
    "repr": "KeyError: (no text available: __str__ raised ZeroDivisionError)",
    "surrogate": "ValueError: half \\udc80 a \\ud800 character",
    "no text": "NoText: (no text available: __str__ raised TypeError)",
    "own text": "OwnText: it holds what it says",
}
LONG = {"long": "x", "long percent": "%", "long umlaut": "ü", "long lines": "\n"}
SO_MANY = 300_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class NoText(Exception):
    def __str__(self) -> Any:
        return 7


class _Text(str):
    __slots__ = ()

    def __format__(self, spec: str) -> str:
        raise ZeroDivisionError

    def encode(self, *arguments: Any) -> bytes:
        raise ZeroDivisionError


class OwnText(Exception):
    def __str__(self) -> str:
        return _Text("it holds what it says")


class _Unshowable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def fail(what: str) -> Any:
    """Raise the requested exception, or return a value that cannot be printed either."""
    errors: dict[str, Exception] = {
        "str": Unprintable(),
        "repr": KeyError(_Unshowable()),
        "surrogate": ValueError("half \udc80 a \ud800 character"),
        "no text": NoText(),
        "own text": OwnText(),
    }
    if what in errors:
        raise errors[what]
    if what in LONG:
        many = 20_000 if what == "long lines" else SO_MANY
        raise ValueError(LONG[what] * many + "the end of it")
    return _Unshowable()


def once(requests: Any) -> Any:
    return fail(requests[0]["what"].item().decode())


def streams(requests: Any) -> Iterator[Any]:
    yield fail(requests[0]["what"].item().decode())


async def async_streams(requests: Any) -> AsyncIterator[Any]:
    yield fail(requests[0]["what"].item().decode())


MODEL_PY = """
import test_unusual_exceptions
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        what = pb_utils.get_input_tensor_by_name(requests[0], "what").as_numpy().item().decode()
        if what == "response":
            text = "y" * test_unusual_exceptions.SO_MANY + "the end of it"
            return [pb_utils.InferenceResponse([], pb_utils.TritonError(text))]
        return test_unusual_exceptions.fail(what)
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "what", data_type: TYPE_STRING, dims: [ 1 ] } ]
output [ { name: "told", data_type: TYPE_STRING, dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def served(daemon: RunningDaemon) -> RunningDaemon:
    register = daemon.client.register
    decoupled = ModelConfig(decoupled=True)
    register(once, "once", WHAT, REPORTED, progress=False)
    register(streams, "streams", WHAT, REPORTED, decoupled, progress=False)
    register(async_streams, "async_streams", WHAT, REPORTED, decoupled, progress=False)
    folder = Path(daemon.config.runtime_dir) / "models" / "python"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL_PY)
    (folder / "config.pbtxt").write_text(CONFIG)
    here = Path(__file__).parent
    daemon.client.register_model(folder, sys_path=[str(here), str(here.parent)], progress=False)
    return daemon


def ask(daemon: RunningDaemon, model: str, what: str, protocol: str = "grpc") -> str:
    """Return the error of a request."""
    given = {"what": np.array([[what.encode()]], object)}
    try:
        if "streams" in model:
            with Streaming(daemon.grpc, model, given) as answers:
                pytest.fail(f"it answered {list(answers)}")
        client = Inference(protocol, daemon.http if protocol == "http" else daemon.grpc)
        with contextlib.closing(client):
            pytest.fail(f"it answered {client.infer(model, given)}")
    except InferenceServerException as error:
        return str(error.message())


@pytest.mark.parametrize("model", ["once", "streams", "async_streams", "python"])
@pytest.mark.parametrize("what", SHOWN)
def test_an_exception_that_cannot_be_printed_fails_only_its_batch(
    served: RunningDaemon, model: str, what: str
) -> None:
    assert SHOWN[what] in ask(served, model, what)


@pytest.mark.parametrize("model", ["once", "streams", "async_streams", "python"])
def test_a_result_that_cannot_be_printed_fails_only_its_batch(
    served: RunningDaemon, model: str
) -> None:
    text = ask(served, model, "answer")
    assert "_Unshowable" in text or "ZeroDivisionError" in text


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("model", ["once", "streams", "async_streams", "python"])
@pytest.mark.parametrize("what", LONG)
def test_clients_get_the_beginning_of_a_long_error(
    served: RunningDaemon, model: str, what: str, protocol: str
) -> None:
    text = ask(served, model, what, protocol)
    assert f"ValueError: {LONG[what] * 100}".rstrip() in text
    assert "the model's log has the full text" in text
    assert len(text.encode()) < MAX_BYTES


def test_the_log_has_the_whole_error(served: RunningDaemon) -> None:
    ask(served, "once", "long")
    ask(served, "python", "response")
    for model, letter in (("once", "x"), ("python", "y")):

        def logged(model: str = model, letter: str = letter) -> bool:
            lines = served.client.logs(model, lines=200)
            said = "".join(lines)
            return "the end of it" in said and said.count(letter * 10_000) >= SO_MANY // 10_000 - 1

        eventually(logged, f"the log of {model} has all")


class Loads:
    """A factory that raises the given exception."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self) -> Any:
        return fail(self.what) if self.what != "huge" else fail_hugely()


def fail_hugely() -> None:
    """Raise an error longer than a control message."""
    raise ValueError("x" * (10 << 20) + "the end of it")


@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize(("what", "said"), [*SHOWN.items(), ("huge", "ValueError: xxxx")])
def test_a_registrant_gets_the_beginning_of_a_long_error(
    served: RunningDaemon, what: str, said: str, isolation: str
) -> None:
    with pytest.raises(RegistrationError) as caught:
        served.client.register(
            Loads(what), "fails", WHAT, REPORTED, factory=True, isolation=isolation, progress=False
        )
    assert said in str(caught.value)


def test_no_worker_has_exited(served: RunningDaemon) -> None:
    """The last test of this module."""
    models = served.client.status().models
    assert [model.instances[0].restarts for model in models] == [0] * 4
