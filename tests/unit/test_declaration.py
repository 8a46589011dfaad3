"""``@declare`` and `declaration_of`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from pytriton.declaration import Declaration, declaration_of, declare, validate_model_name
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor

X = Tensor((1,), np.float32, "x")
Y = Tensor((1,), np.float32, "y")


def test_declare_returns_the_callable_with_its_declaration() -> None:
    def infer(requests: Any) -> Any:
        return requests

    config = ModelConfig(max_batch_size=8)
    declared = declare("m", [X], [Y], config, strict=True, instances=2)(infer)
    assert declared is infer
    assert declaration_of(infer) == Declaration("m", (X,), (Y,), config, True, {"instances": 2})


def test_a_declaration_is_found_above_and_below_other_decorators() -> None:
    @declare(inputs=[X], outputs=[Y])
    @batch
    def above(x: Any) -> Any:
        return [x]

    @batch
    @declare(inputs=[X], outputs=[Y])
    def below(x: Any) -> Any:
        return [x]

    for infer in (above, below):
        declared = declaration_of(infer)
        assert declared is not None
        assert declared.name == infer.__name__


@declare(inputs=[X], outputs=[Y])
class Declared:
    def __call__(self, requests: Any) -> Any:
        return requests


class WithDeclaredCall:
    @declare(inputs=[X], outputs=[Y])
    @batch
    def __call__(self, x: Any) -> Any:
        return [x]

    @declare("other-model", inputs=[X], outputs=[Y])
    @batch
    def other(self, x: Any) -> Any:
        return [x]

    def undeclared(self, requests: Any) -> Any:
        return requests


class Inherits(WithDeclaredCall):
    pass


class Plain:
    def __call__(self, requests: Any) -> Any:
        return requests


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Declared, "Declared"),
        (Declared(), "Declared"),
        (WithDeclaredCall(), "WithDeclaredCall"),
        (WithDeclaredCall, "WithDeclaredCall"),
        (WithDeclaredCall().other, "other-model"),
        (functools.partial(WithDeclaredCall().other), "other-model"),
        (declare(inputs=[X], outputs=[Y])(Plain()), "Plain"),
        (batch(declare(inputs=[X], outputs=[Y])(Plain())), "Plain"),
        (Inherits, "WithDeclaredCall"),
        (Inherits(), "WithDeclaredCall"),
    ],
)
def test_objects_and_their_default_names(target: Any, name: str) -> None:
    declared = declaration_of(target)
    assert declared is not None
    assert declared.name == name


@pytest.mark.parametrize(
    "target", [Plain, Plain(), WithDeclaredCall().undeclared, len, 3, None, functools.partial(len)]
)
def test_other_objects_have_no_declaration(target: Any) -> None:
    assert declaration_of(target) is None


@pytest.mark.parametrize(
    ("attach", "error", "message"),
    [
        (lambda: declare("a b", [X], [Y])(Plain()), PyTritonValidationError, "Model name can only"),
        (lambda: declare("m", [X, X], [Y])(Plain()), PyTritonValidationError, "called 'x'"),
        (lambda: declare("m", [X], [Y])(3), PyTritonValidationError, "Only a callable"),  # type: ignore[type-var]
        (
            lambda: declare("m", [X], [Y])(len),
            PyTritonValidationError,
            "does not accept attributes",
        ),
        (
            lambda: declare(inputs=[X], outputs=[Y])(lambda requests: requests),
            PyTritonValidationError,
            r"A lambda has no name to use for its model: pass @declare\(name=...\)",
        ),
        (lambda: declare(Plain), PyTritonValidationError, "with parentheses"),  # type: ignore[arg-type]
        (
            lambda: declare("m", [X], [Y], ModelConfig(max_batch_size=-1))(Plain()),
            PyTritonBadParameterError,
            "max_batch_size",
        ),
    ],
)
def test_mistakes_are_refused(attach: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attach()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "Model name cannot be empty"),
        ("a b", "can only contain alphanumeric characters, dots, underscores and dashes"),
        ("a/b", "can only contain"),
        ("m\n", "can only contain"),
        ("..", "dots only"),
        (None, "has to be a string"),
    ],
)
def test_bad_model_names_are_refused(name: Any, message: str) -> None:
    with pytest.raises(PyTritonValidationError, match=message):
        validate_model_name(name)
