"""The options of a model: everything follows from their declarations in pytriton/run_options.py."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import numpy as np
import pytest

from pytriton import run_options
from pytriton._protocol import messages
from pytriton._register.message import plan
from pytriton._register.python_models.model_programs import prepare_model
from pytriton.daemon import DaemonClient
from pytriton.declaration import declare
from pytriton.exceptions import PyTritonValidationError
from pytriton.limits import Limits
from pytriton.model_config import Tensor
from pytriton.run_options import OPTIONS, names_of

pytestmark = pytest.mark.usefixtures("no_interpreter")

X = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
#: Options that are not fields of ModelSpec, with the code that reads them.
READ_BY_NAME = {
    "python": "the world", "env": "the world", "cwd": "the world", "sys_path": "the world",
    "requirements": "the world", "trace_config": "the world", "replace": "messages.Register",
    "ephemeral": "messages.Register", "model_version": "ModelSpec.version",
    "route": "ModelSpec.web",
}  # fmt: skip


class TritonPythonModel:
    """A model.py's class."""

    def execute(self, requests: Any) -> Any:
        return requests


MODEL_CONFIG = {
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    "max_batch_size": 4,
}


def message_of(**options: Any) -> messages.Register:
    tensors = None if "openai" in options else X  # it has its own
    return plan(lambda requests=None: requests, "m", tensors, tensors, None, options).message


def model_message_of(**options: Any) -> messages.Register:
    return prepare_model(TritonPythonModel, "m", MODEL_CONFIG, None, options, None)[0]


def test_every_option_has_a_destination() -> None:
    fields = {field.name for field in msgspec.structs.fields(messages.ModelSpec)}
    nowhere = sorted(set(OPTIONS) - fields - set(READ_BY_NAME))
    assert nowhere == [], "give ModelSpec a field of that name, or say in READ_BY_NAME who reads it"
    assert set(OPTIONS) - fields == set(READ_BY_NAME)


GIVEN: dict[str, tuple[Any, Any]] = {
    "instances": (3, 3),
    "devices": (["cpu"], [""]),
    "load_timeout_s": (7, 7),
    "on_crash": ("fail", "fail"),
    "on_error": ("fail", "fail"),
    "max_concurrency": (8, 8),
    "standby_workers": (2, 2),
    "lazy": (True, True),
    "execution_timeout_s": (1.5, 1.5),
    "max_batches": (9, 9),
    "limits": (Limits(nice=3), messages.Limits(nice=3)),
    "memory_request": ("2GiB", 2 << 30),
    "gpu_memory_request": (4096, 4096),
    "max_inflight_batches": (4, 4),
    "access_log": (True, True),
    "zero_copy_inputs": (True, True),
    "factory": (True, True),
    "check": (print, True),
    "isolation": ("thread", "thread"),
    "strict": (True, True),
    "openai": ("chat", messages.OpenAICard(["chat"])),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_becomes_the_field_of_its_name(name: str) -> None:
    given, sent = GIVEN[name]
    assert getattr(message_of(**{name: given}).spec, name) == sent
    assert getattr(message_of().spec, name) != sent
    if name in names_of(run_options.RegisterModelOptions):
        assert getattr(model_message_of(**{name: given}).spec, name) == sent


def test_every_field_has_an_option() -> None:
    untried = sorted(set(OPTIONS) - set(GIVEN) - set(READ_BY_NAME))
    assert untried == [], "give these a row in GIVEN, and in REFUSED where a value can be wrong"
    assert set(GIVEN) | set(READ_BY_NAME) == set(OPTIONS)


@pytest.mark.parametrize("make", [message_of, model_message_of])
def test_options_read_by_name(make: Any) -> None:
    plain, said = make(), make(replace=True, ephemeral=True, cwd="/", env={"A": "b"})
    assert (plain.replace, plain.ephemeral) == (False, False)
    assert (said.replace, said.ephemeral) == (True, True)
    assert (said.spec.world.cwd, said.spec.world.env["A"]) == ("/", "b")
    traced = make(trace_config=["mode=opentelemetry", "opentelemetry,url=http://h:1/v1/traces"])
    assert "http://h:1/v1/traces" in traced.spec.world.env.values()


@pytest.mark.parametrize("make", [message_of, model_message_of])
def test_none_is_the_default(make: Any) -> None:
    nothing = dict.fromkeys(names_of(run_options.RegisterModelOptions))
    assert make(**nothing) == make()


def test_none_may_be_declared() -> None:
    target = declare(name="m", inputs=X, outputs=X, standby_workers=None, limits=None)(lambda r: r)
    spec = plan(target, None, None, None, None, {}).message.spec
    assert (spec.standby_workers, spec.limits) == (0, messages.Limits())


REFUSED: dict[str, tuple[Any, str]] = {
    "instances": (True, "instances has to be a whole number of 1 or more, .*got True"),
    "load_timeout_s": (float("inf"), "number of seconds above 0, got inf"),
    "execution_timeout_s": ("5", "number of seconds above 0, got '5'"),
    "on_crash": ("again", "on_crash must be 'retry' or 'fail', got 'again'"),
    "standby_workers": (-1, "standby_workers must be a whole number of 0 or more, got -1"),
    "max_batches": (0, "max_batches must be a whole number of 1 or more"),
    "max_inflight_batches": (
        1.0,
        "max_inflight_batches must be a whole number of 1 or more, got 1.0",
    ),
    "limits": ({"nice": 3}, r"limits must be pytriton.Limits\(...\)"),
    "check": (3, "check must be a function that takes the loaded callable, got 3"),
    "trace_config": ("mode=opentelemetry", "trace_config must be a list of settings"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_value_is_refused(name: str) -> None:
    value, words = REFUSED[name]
    with pytest.raises(PyTritonValidationError, match=words):
        message_of(**{name: value})
    declared = declare(name="m", inputs=X, outputs=X, **{name: value})(lambda r: r)
    with pytest.raises(PyTritonValidationError, match=words):
        plan(declared, None, None, None, None, {})


@pytest.mark.parametrize(
    ("make", "wrong", "words"),
    [
        (message_of, {"instnces": 2}, r"register\(\).*'instnces' \(did you mean instances\?\)"),
        (model_message_of, {"strict": True}, r"register_model\(\) got an unexpected.*'strict'"),
        (model_message_of, {"isolation": "thread"}, "unexpected keyword argument 'isolation'"),
        (model_message_of, {"model_version": 2}, "unexpected keyword argument 'model_version'"),
    ],
)
def test_an_unknown_option_is_refused(make: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make(**wrong)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        (DaemonClient.register, run_options.RegisterOptions),
        (DaemonClient.register_model, run_options.RegisterModelOptions),
        (DaemonClient.register_repository, run_options.RegisterModelOptions),
    ],
)
def test_help_and_completion_show_every_option(method: Any, kind: Any) -> None:
    parameters = inspect.signature(method).parameters
    doc = inspect.getdoc(method) or ""
    for name in names_of(kind):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"\n    {name}: {OPTIONS[name].doc[:30]}" in doc
    assert "\n    options:" not in doc
    assert "\n\nRaises:" in doc
