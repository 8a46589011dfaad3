"""What a Triton Python model's `execute` may return for its requests."""

from __future__ import annotations

import pytest

from pytriton import pb_utils
from pytriton.pb_utils import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE as AGAIN
from pytriton.worker.python_model.batches import WrongReturn, check_responses


def incoming() -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest.incoming(
        [], [], "", request_id="", correlation_id=0, flags=0, timeout=0, trace=None, model=("m", 1)
    )


def test_a_requeued_request_needs_no_response() -> None:
    answered, again = incoming(), incoming()
    again.set_release_flags(AGAIN)
    response = pb_utils.InferenceResponse()
    check_responses([response, None], [answered, again])
    with pytest.raises(WrongReturn, match="Expected a None object"):
        check_responses([response, response], [answered, again])


def test_a_request_without_parameters_has_empty_json() -> None:
    assert incoming().parameters() == "{}"
