"""What a client sends: tokens, parameters, headers, options; and what it refuses before sending."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fakes.triton.fake_triton import MODEL, FakeTriton, Received

from pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
    RequestOptions,
    TlsOptions,
)
from pytriton.client.exceptions import (
    PyTritonClientInferenceServerError,
    PyTritonClientValueError,
)
from pytriton.model_config import TensorSpec, TritonModelConfig

X = np.ones(2, np.float32)
CONFIG = TritonModelConfig(
    MODEL,
    inputs=[
        TensorSpec("a", np.float32, (-1,)),
        TensorSpec("b", np.bytes_, (-1,), optional=True),
    ],
)


def values(received: Received) -> dict[str, Any]:
    """The parameters of a request over either protocol; gRPC sends int64 as text."""
    found = {}
    for name, value in received.request.get("parameters", {}).items():
        (value,) = value.values() if isinstance(value, dict) else (value,)
        found[name] = int(value) if isinstance(value, str) and value.isdecimal() else value
    found.pop("binary_data_output", None)
    return found


# ── What is sent ─────────────────────────────────────────────────────────────────────────────────

OPTIONS = RequestOptions(
    priority=2, timeout_s=0.25, sequence_id=7, sequence_start=True, sequence_end=True
)
AS_PARAMETERS = {
    "priority": 2,
    "timeout": 250_000,
    "sequence_id": 7,
    "sequence_start": True,
    "sequence_end": True,
}


def test_options_reach_the_server(fake: FakeTriton) -> None:
    with ModelClient(fake.url, MODEL) as client:
        client.infer_sample(X, options=OPTIONS)
        client.infer_sample(X, options=RequestOptions(request_id="mine"))
        client.infer_sample(X, options=RequestOptions(requested_outputs=["y"]))
        client.infer_sample(X)
    optioned, named, wanted, plain = fake.inferences()
    assert {**values(optioned)} == AS_PARAMETERS
    assert [one.request["id"] for one in (optioned, named, wanted, plain)] == [
        "0",
        "mine",
        "2",
        "3",
    ]
    assert [output["name"] for output in wanted.request["outputs"]] == ["y"]
    assert "outputs" not in plain.request
    assert values(plain) == {}


def test_parameters_and_headers_reach_the_server(fake: FakeTriton) -> None:
    parameters: dict[str, str | int | bool] = {"text": "t", "count": 3, "flag": True}
    given: Any = {**parameters, "count": np.int64(3), "flag": np.True_}
    with ModelClient(fake.url, MODEL) as client:
        client.infer_batch(x=X[None], parameters=given, headers={"X-Who": "me", "x-n": 5})
    (received,) = fake.inferences()
    assert values(received) == parameters
    assert (received.headers["x-who"], received.headers["x-n"]) == ("me", "5")


def call_everything(client: ModelClient) -> None:
    client.wait_for_server(60)
    client.wait_for_model(60)
    assert client.model_config.model_name == MODEL
    client.infer_sample(X)
    client.load_model({"name": MODEL}, {"file:1/model.py": b""})
    client.unload_model()


def carried(fake: FakeTriton) -> set[tuple[str, str | None]]:
    header = "triton-access-token"
    if fake.url.startswith("grpc"):
        header = f"triton-grpc-protocol-{header}"
    return {(one.method, one.headers.get(header)) for one in fake.received}


def test_the_token_is_sent_with_every_call(fake: FakeTriton) -> None:
    with ModelClient(fake.url, MODEL, access_token="secret") as client:
        call_everything(client)
    methods = ("ready", "config", "infer", "load", "unload")
    assert carried(fake) == {(method, "secret") for method in methods}


def test_other_clients_send_the_token(fake: FakeTriton) -> None:
    async def ask() -> None:
        async with AsyncioModelClient(fake.url, MODEL, access_token="secret") as client:
            await client.wait_for_server(60)
            await client.infer_sample(X)
            await client.load_model()
            await client.unload_model()

    asyncio.run(ask())
    with FuturesModelClient(fake.url, MODEL, access_token="secret") as client:
        client.infer_sample(X).result()
        client.wait_for_model(60).result()
        client.model_config().result()
    assert {token for _, token in carried(fake)} == {"secret"}


def test_without_a_token_no_header_is_sent_and_a_calls_header_wins(fake: FakeTriton) -> None:
    with ModelClient(fake.url, MODEL) as client:
        client.infer_sample(X)
    assert {token for _, token in carried(fake)} == {None}
    fake.received.clear()
    name = "triton-access-token"
    name = f"triton-grpc-protocol-{name}" if fake.url.startswith("grpc") else name
    with ModelClient(fake.url, MODEL, access_token="secret") as client:
        client.infer_sample(X, headers={name: "other"})
    assert ("infer", "other") in carried(fake)


# ── What is refused, with nothing sent ───────────────────────────────────────────────────────────


def ask(*inputs: Any, **named: Any) -> Any:
    """Send a request to a server that does not exist: if it were sent, it would fail differently."""
    with ModelClient(
        "127.0.0.1:1", MODEL, model_config=CONFIG, ensure_model_is_ready=False
    ) as client:
        return client.infer_sample(*inputs, **named)


@pytest.mark.parametrize(
    ("inputs", "named", "said"),
    [
        ([X], {"b": X}, "Use either positional either keyword method arguments convention"),
        ([], {}, "Provide input data"),
        ([X, X, X], {}, r"takes 2 inputs \(a, b\), got 3 positional arguments"),
        ([[1.0]], {}, r"Input 'a' must be a numpy array, got list.*np\.asarray"),
        ([X.astype("M8[s]")], {}, "Input 'a': Triton has no data type"),
        ([X], {"parameters": {"a": 1.5}}, "Values of parameters must be str, int or bool"),
        ([X], {"parameters": {"a": None}}, "Values of parameters must be str, int or bool"),
        ([X], {"parameters": {1: 1}}, "Names of parameters must be strings"),
        ([X], {"parameters": [1]}, "parameters must be a dict"),
        ([X], {"parameters": {"priority": 1}}, r"RequestOptions\(priority=\.\.\.\)"),
        ([X], {"parameters": {"timeout": 1}}, r"RequestOptions\(timeout_s=\.\.\.\)"),
        ([X], {"parameters": {"triton_a": 1}}, "reserved by Triton"),
        ([X], {"parameters": {"a": 2**63}}, "parameter 'a' must be a 64-bit integer"),
        ([X], {"parameters": {"a": "\ud800"}}, "Strings in parameters must be valid Unicode"),
        ([X], {"parameters": {"\ud800": 1}}, "Names of parameters must be strings of valid"),
        (
            [X],
            {"headers": {"a": "b\r\nc: d"}},
            "header 'a' contains a character that is not allowed",
        ),
        ([X], {"headers": {"a": "\u65e5"}}, "header 'a' contains a character that is not allowed"),
        ([X], {"headers": {"a b": "c"}}, "Header names may contain only letters, digits and"),
        ([X], {"headers": {"Content-Length": 0}}, "'Content-Length' is set by the client itself"),
        ([X], {"headers": {"a": 1.5}}, "Values of headers must be str, int or bool"),
        ([X], {"headers": "a: b"}, "headers must be a dict"),
        ([X], {"options": {"priority": 1}}, "options must be RequestOptions"),
    ],
)
def test_invalid_arguments(inputs: list[Any], named: Any, said: str) -> None:
    with pytest.raises(PyTritonClientValueError, match=said):
        ask(*inputs, **named)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("X-Trace-Bin", "a", "names that end with '-bin' have binary values"),
        (
            "x-city",
            "Orl\u00e9ans",
            "only printable ASCII characters, got 'Orl.ans'. Send the value as a",
        ),
        ("x-tab", "a\tb", "only printable ASCII characters"),
        ("x|y", "a", r"names may contain only letters, digits and \._-"),
        ("grpc-timeout", "1S", "must not begin with 'grpc-'"),
    ],
)
def test_values_that_grpc_cannot_carry_are_reported(name: str, value: str, said: str) -> None:
    with (
        ModelClient(
            "grpc://127.0.0.1:1", MODEL, model_config=CONFIG, ensure_model_is_ready=False
        ) as client,
        pytest.raises(PyTritonClientValueError, match=said),
    ):
        client.infer_sample(X, headers={name: value})


@pytest.mark.parametrize(
    ("client", "config"),
    [
        (ModelClient, CONFIG),
        (ModelClient, replace(CONFIG, batching=False)),
        (ModelClient, replace(CONFIG, decoupled=True)),
        (DecoupledModelClient, replace(CONFIG, decoupled=True, batching=False)),
    ],
)
def test_missing_inputs_are_reported_before_other_errors(
    client: Any, config: TritonModelConfig
) -> None:
    asking = client("grpc://127.0.0.1:1", MODEL, model_config=config, ensure_model_is_ready=False)
    with asking, pytest.raises(PyTritonClientValueError, match="Provide input data"):
        asking.infer_batch()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array(["é"]), r"Unicode inputs are not supported\. Encode numpy array 'b'"),
        (np.array(["é"], object), r"Input 'b' has dtype object and holds str .* Use only bytes"),
        (np.array([b"a", 1], object), "Input 'b' has dtype object and holds int"),
    ],
)
def test_text_must_be_encoded(array: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        ask(a=X, b=array)


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -1},
        {"priority": True},
        {"priority": "1"},
        {"priority": 2**63},
        {"timeout_s": 0},
        {"timeout_s": "5"},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"timeout_s": 1e300},
        {"request_id": "\ud800"},
        {"request_id": 5},
        {"sequence_id": 1.5},
        {"sequence_id": True},
        {"sequence_id": 2**63},
        {"sequence_id": "\ud800"},
        {"requested_outputs": "y"},
        {"requested_outputs": 5},
        {"requested_outputs": [1]},
    ],
)
def test_invalid_options(fields: dict[str, Any]) -> None:
    with pytest.raises(
        PyTritonClientValueError, match=f"RequestOptions: {next(iter(fields))} must"
    ):
        RequestOptions(**fields)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_name": ""}, "model_name must be the name of a model"),
        ({"model_version": "latest"}, "model_version must be a positive integer"),
        ({"model_version": 0}, "model_version must be a positive integer"),
        ({"init_timeout_s": 0}, "init_timeout_s must be a number of seconds above 0"),
        ({"inference_timeout_s": -1}, "inference_timeout_s must be a number of seconds above 0"),
        ({"inference_timeout_s": "5"}, "inference_timeout_s must be a number of seconds above 0"),
        ({"inference_timeout_s": float("nan")}, "inference_timeout_s must be a number"),
        ({"tls": TlsOptions()}, r"tls= requires a url with https:// or grpcs://"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(PyTritonClientValueError, match=said):
        ModelClient("localhost", **{"model_name": MODEL, **settings})


def test_decoupled_clients_require_grpc() -> None:
    with pytest.raises(PyTritonClientValueError, match="DecoupledModelClient only supports gRPC"):
        DecoupledModelClient("localhost", MODEL)


def test_invalid_tls_files(tmp_path: Path) -> None:
    with pytest.raises(PyTritonClientValueError, match=r"cannot read ca_certificate="):
        TlsOptions(ca_certificate=tmp_path / "missing.pem")
    (tmp_path / "empty.pem").touch()
    with pytest.raises(PyTritonClientValueError, match="both client_certificate and client_key"):
        TlsOptions(client_certificate=tmp_path / "empty.pem")
    with pytest.raises(PyTritonClientValueError, match="Cannot use"):
        ModelClient("https://h", MODEL, tls=TlsOptions(tmp_path / "empty.pem"))


def test_an_input_may_be_called_options(fake: FakeTriton) -> None:
    with ModelClient(fake.url, MODEL) as client:
        client.infer_sample(options=X)  # type: ignore[arg-type]
    (received,) = fake.inferences()
    assert [tensor["name"] for tensor in received.request["inputs"]] == ["options"]


@pytest.mark.parametrize("name", ["self", "parameters", "headers", "options", "x"])
def test_an_input_may_have_any_name(fake: FakeTriton, name: str) -> None:
    config = TritonModelConfig(MODEL, inputs=[TensorSpec(name, np.float32, (-1,))])
    more: dict[str, Any] = {"parameters": {"k": 1}} if name != "parameters" else {}
    with ModelClient(fake.url, MODEL, model_config=config) as client:
        sample: dict[str, Any] = {name: X, **more}
        client.infer_sample(**sample)
        client.infer_batch(**{**sample, name: X[None]})
    for sent in fake.inferences():
        assert [one["name"] for one in sent.request["inputs"]] == [name]
        assert values(sent) == more.get("parameters", {})


def test_mismatched_inputs_are_not_resent_to_an_unchanged_model(fake: FakeTriton) -> None:
    fake.error = (400, grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape for input 'x'")
    with ModelClient(fake.url, MODEL) as client:
        for asked in (2, 3):  # the configuration was read, and is read again after each failure
            with pytest.raises(PyTritonClientInferenceServerError, match="unexpected shape"):
                client.infer_sample(X)
            assert fake.count("config") == asked
    assert len(fake.inferences()) == 2


def test_errors_of_the_callable_do_not_refetch_the_configuration(fake: FakeTriton) -> None:
    fake.error = (500, grpc.StatusCode.INTERNAL, "ValueError: no")
    with ModelClient(fake.url, MODEL) as client:
        for _ in range(2):
            with pytest.raises(PyTritonClientInferenceServerError, match="ValueError: no"):
                client.infer_sample(X)
    assert (fake.count("config"), len(fake.inferences())) == (1, 2)
