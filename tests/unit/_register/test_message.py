"""From the arguments and declarations of `register` to the message: completed, or refused with the fix."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

from pytriton._register import environments
from pytriton._register.message import plan
from pytriton.declaration import declare, default_model_name
from pytriton.decorators import batch, sample, triton_context
from pytriton.exceptions import PicklingError, PyTritonBadParameterError, PyTritonValidationError
from pytriton.limits import Limits
from pytriton.model_config import ModelConfig, Tensor
from pytriton.run_options import count_instances, device_list
from pytriton.worker.callables import LoadError, create_callable

pytestmark = pytest.mark.usefixtures("no_interpreter")

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))


class _Engine:
    def __call__(self, requests: Any) -> Any:
        return requests


def double(requests: Any) -> Any:
    return requests


def ready(infer_fn: Any = double, **more: Any) -> Any:
    """Prepare a registration with defaults for everything that is not in `more`."""
    said: dict[str, Any] = {"model_name": None, "inputs": [X], "outputs": [Y], "config": None}
    said.update({name: more.pop(name) for name in list(more) if name in said})
    planned = plan(infer_fn, **said, given=more)
    return planned.message, planned.payloads()


def test_the_models_name_defaults_to_the_callables() -> None:
    message, payloads = ready()
    assert message.spec.name == "double"
    assert message.spec.config["input"][0]["name"] == "x"
    assert (message.spec.instances, message.spec.devices, len(payloads)) == (1, [], 1)
    assert default_model_name(_Engine()) == "_Engine"


@pytest.mark.parametrize("dtype", [str, np.str_, "str"])
def test_str_inputs_are_passed_to_the_worker(dtype: Any) -> None:
    inputs = [Tensor((1,), dtype), X, Tensor((1,), bytes), Tensor((1,), object)]
    assert ready(inputs=inputs)[0].spec.text_inputs == ["INPUT_1"]


def test_a_declaration_fills_missing_arguments() -> None:
    target = declare(
        name="declared", inputs=[X], outputs=[Y], config=ModelConfig(max_batch_size=7), strict=True,
        instances=3, load_timeout_s=5, zero_copy_inputs=True,
    )(lambda requests: requests)  # fmt: skip
    message, _ = ready(target, inputs=None, outputs=None)
    spec = message.spec
    assert (spec.name, spec.instances, spec.strict, spec.load_timeout_s) == ("declared", 3, True, 5)
    assert spec.config["max_batch_size"] == 7
    assert spec.zero_copy_inputs


def test_arguments_override_the_declaration() -> None:
    target = declare(name="declared", inputs=[X], outputs=[Y], strict=True, instances=3)(
        lambda requests: requests
    )
    other = Tensor(name="z", dtype=np.int8, shape=(2,))
    message, _ = ready(target, model_name="said", inputs=[other], strict=False, devices=[0, 0])
    spec = message.spec
    assert (spec.name, spec.strict, spec.instances, spec.devices) == ("said", False, 2, ["0", "0"])
    assert spec.config["input"][0]["name"] == "z"


def test_each_callable_of_a_list_is_one_instance() -> None:
    message, payloads = ready([double, _Engine()], model_name="m", devices=[0, "cpu"])
    assert (message.spec.instances, len(payloads)) == (2, 2)
    assert message.spec.devices == ["0", ""]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a lambda": ({"infer_fn": lambda r: r}, "lambda has no name.*model_name="),
    "no inputs": ({"inputs": None}, "'double' has no inputs.*declare"),
    "no outputs": ({"outputs": None}, "'double' has no outputs"),
    "not callable": ({"infer_fn": 3}, "must be a callable or a list of callables, got an int"),
    "text": ({"infer_fn": "module:attribute"}, "is for the command line"),
    "a result": ({"infer_fn": np.zeros(3)}, "got an ndarray"),
    "an empty list": ({"infer_fn": []}, "empty list"),
    "one of a list": ({"infer_fn": [double, None]}, "got a NoneType"),
    "a factory": (
        {"infer_fn": 3, "factory": True},
        "factory=True.*creates the callable, got an int",
    ),
    "instances": ({"instances": 0}, "whole number of 1 or more, .*got 0"),
    "callables and instances": (
        {"infer_fn": [double, double], "instances": 3},
        "contradict each other: instances is 3, the number of callables is 2",
    ),
    "devices and instances": ({"devices": [0, 1], "instances": 3}, "number of devices is 2"),
    "device alone": ({"devices": 0}, r"devices=\[0\]"),
    "no devices": ({"devices": []}, "omit it"),
    "negative device": ({"devices": [-1]}, "-1 is not a device"),
    "PyTorch's device": ({"devices": ["cuda:0"]}, "'cuda:0' is not a device.*number"),
    "one of two devices": ({"devices": [(0, "gpu1")]}, "'gpu1' is not a device"),
    "a configuration that is a dict": (
        {"config": {"max_batch_size": 3}},
        "config must be a ModelConfig",
    ),
    "true device": ({"devices": [True]}, "True is not a device"),
    "empty tuple": ({"devices": [()]}, "one or more GPUs"),
    "load_timeout_s": ({"load_timeout_s": 0}, "above 0, got 0"),
    "name": ({"model_name": "a/b"}, "can only contain"),
    "isolation": ({"isolation": "greenlet"}, "'process' or 'thread', got 'greenlet'"),
    "threads have no limits": (
        {"isolation": "thread", "limits": Limits(recycle_above="1GiB"), "standby_workers": 1},
        r"does not support standby_workers=1, limits=.*Omit them, or use isolation='process'",
    ),
    "threads have no devices": (
        {"isolation": "thread", "devices": [0]},
        r"does not support devices=\[0\]",
    ),
}


def _load() -> Any:
    return double


def _plain(x: Any, y: Any) -> Any:
    return x, y


@batch
def _named(a: Any, b: Any) -> Any:
    return a, b


@batch(parameters=True)
@triton_context
def _more(x: Any, parameters: Any, triton_context: Any) -> Any:
    return x, parameters, triton_context


class _Named:
    @batch
    def __call__(self, x: Any) -> Any:
        return x

    @sample
    def other(self, z: Any) -> Any:
        return z


MISTAKES.update(
    {
        "a forgotten factory": (
            {"infer_fn": _load},
            r"_load\(\).*creates the callable.*factory=True",
        ),
        "a factory that is none": (
            {"infer_fn": _Named().__call__, "factory": True},
            r"_Named is decorated.*without arguments; leave out factory=True",
        ),
        "a factory with arguments": (
            {"infer_fn": _plain, "factory": True},
            r"_plain\(x.*without arguments, as factory=True does: missing.*leave out factory=True",
        ),
        "no decorator": (
            {"infer_fn": _plain},
            r"_plain\(x.*list of requests.*decorate it with @batch",
        ),
        "names of no input": (
            {"infer_fn": _named},
            r"_named\(a.*inputs by name \(x\).*names of the inputs",
        ),
        "of a method": ({"infer_fn": _Named().other}, r"other\(self, z.*inputs by name \(x\)"),
        "one of several": ({"infer_fn": [double, _named]}, "inputs by name"),
    }
)


@pytest.mark.parametrize(
    "fine",
    [
        _more, _Named(), _Named().__call__, batch(lambda **inputs: inputs), batch(lambda x, y=1: x), print,
        functools.partial(_plain, 1), lambda *requests: requests,
    ],
)  # fmt: skip
def test_any_callable_is_accepted(fine: Any) -> None:
    ready(fine, model_name="m", isolation="thread")


def test_a_factory_is_not_called_with_requests() -> None:
    ready(_load, factory=True)


def test_a_factory_s_result_is_checked_in_the_worker() -> None:
    message, _ = ready(lambda: _named, model_name="m", factory=True)
    with pytest.raises(LoadError, match=r"model m: _named.*inputs by name"):
        create_callable(lambda: _named, message.spec)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_invalid_argument_is_refused_with_the_fix(mistake: str) -> None:
    said, words = MISTAKES[mistake]
    with pytest.raises((PyTritonValidationError, PyTritonBadParameterError), match=words):
        ready(**said)


def test_threads_need_no_pickling() -> None:
    lock = threading.Lock()

    def infer(requests: Any) -> Any:
        with lock:
            return requests

    with pytest.raises(PicklingError):
        ready(infer)
    message, payloads = ready(infer, isolation="thread", instances=3, check=lambda _: lock)
    spec = message.spec
    assert (spec.isolation, spec.instances, spec.on_crash, payloads) == ("thread", 3, "fail", [b""])
    assert not spec.check  # nothing of it is sent
    assert spec.world.env == {}
    _, payloads = ready(deque([infer, infer]), model_name="m", isolation="thread")
    assert payloads == [b"", b""]


def test_a_wrong_declared_option_names_the_nearest() -> None:
    target = declare(inputs=[X], outputs=[Y], instnces=2)(double)  # type: ignore[call-arg]
    try:
        with pytest.raises(PyTritonValidationError, match=r"'instnces'.*Did you mean 'instances'"):
            ready(target)
    finally:
        del double.__pytriton_declaration__  # type: ignore[attr-defined]


def test_an_unsendable_value_is_refused_by_the_client() -> None:
    config = ModelConfig(parameters={"half a character": "\ud800"})
    with pytest.raises(PyTritonValidationError, match="'double' has a value that cannot be sent"):
        ready(config=config)


@pytest.mark.parametrize(
    ("device", "visible"),
    [(0, "0"), (np.int64(3), "3"), ("GPU-8f2", "GPU-8f2"), ("", ""), ("cpu", ""), ("0,1", "0,1"),
     ("MIG-GPU-8f2/1/0", "MIG-GPU-8f2/1/0"), ((0, 2), "0,2"),
     (("GPU-1", "GPU-2"), "GPU-1,GPU-2"), (None, None)],
)  # fmt: skip
def test_a_device_becomes_cuda_visible_devices(device: Any, visible: str | None) -> None:
    assert device_list([device, device]) == [visible, visible]


def test_matching_counts_are_accepted() -> None:
    assert count_instances(2, ["0", "1"], 2) == 2
    assert count_instances(None, [], None) == 1


def test_trace_config_sets_where_a_models_spans_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It overrides this process's variables, which are forwarded."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    url = "http://127.0.0.1:4318/v1/traces"
    env = ready(trace_config=["mode=opentelemetry", f"opentelemetry,url={url}"])[0].spec.world.env
    assert env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == url
    assert env["OTEL_SERVICE_NAME"] == "shop"
    env = ready()[0].spec.world.env
    assert env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "http://127.0.0.1:1"


@pytest.mark.parametrize("wrong", ["mode=opentelemetry", ["opentelemetry"], [1], {"mode": "x"}])
def test_an_invalid_trace_config_is_reported(wrong: Any) -> None:
    with pytest.raises(PyTritonValidationError, match="trace_config must be a list of settings"):
        ready(trace_config=wrong)


def test_another_interpreter_gets_the_workers_requirements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with register_model: users who name an environment need not know what our workers import."""
    asked: list[str] = []

    def provide(python: str, say: Any) -> str | None:
        asked.append(python)
        return "/cache/worker-1f"

    monkeypatch.setattr(environments, "worker_packages", provide)
    world = ready(python=sys.executable)[0].spec.world
    assert world.env[environments.PACKAGES_VARIABLE] == "/cache/worker-1f"
    assert asked == [sys.executable]
    own = ready()[0].spec.world
    assert environments.PACKAGES_VARIABLE not in own.env
    assert len(asked) == 1  # this interpreter has them
