"""Exceptions: hierarchy, message, pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from pytriton import exceptions

ALL = [getattr(exceptions, name) for name in exceptions.__all__ if name != "HTTPError"]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_keeps_its_message_through_pickling(kind: type[exceptions.PyTritonError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what was wrong")))
    assert type(error) is kind
    assert isinstance(error, exceptions.PyTritonError)
    assert error.message == str(error) == "what was wrong"


def test_lists_every_exception_of_the_module() -> None:
    defined = {
        name
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert defined == set(exceptions.__all__)


def test_registration_error_shows_the_remote_traceback_also_after_pickling() -> None:
    error = exceptions.RegistrationError(
        "worker failed", model_name="linear", remote_traceback="Traceback: boom\n"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.model_name, copy.remote_traceback) == ("linear", "Traceback: boom\n")
    assert str(copy) == "worker failed\n\nRemote traceback:\nTraceback: boom"
    assert copy.message == "worker failed"


def test_a_taken_name_is_a_registration_error_and_pytritons_invalid_operation() -> None:
    error = exceptions.ModelExistsError("taken", model_name="linear")
    assert isinstance(error, exceptions.RegistrationError)
    assert isinstance(error, exceptions.PyTritonInvalidOperationError)
    assert pickle.loads(pickle.dumps(error)).model_name == "linear"


def test_pickling_error_names_the_offender_and_the_ways_out() -> None:
    error = exceptions.PicklingError.naming(
        "the callable 'infer'", "infer.<closure 'lock'>", "cannot pickle '_thread.lock' object"
    )
    for part in ("'infer'", "closure 'lock'", "cannot pickle", "factory=True"):
        assert part in str(error)
    assert pickle.loads(pickle.dumps(error)).offender == "infer.<closure 'lock'>"


def test_an_http_error_keeps_its_status_through_pickling() -> None:
    error = pickle.loads(pickle.dumps(exceptions.HTTPError(404, "no such customer")))
    assert (error.status, str(error)) == (404, "no such customer")


@pytest.mark.parametrize("status", [200, 399, 600, True, "404"])
def test_an_http_error_has_the_status_of_an_error(status: object) -> None:
    with pytest.raises(exceptions.PyTritonValidationError, match="from 400 to 599"):
        exceptions.HTTPError(status)  # type: ignore[arg-type]
