"""Answers, or fails, in the way that the parameter "do" of the request names."""

from __future__ import annotations

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """A model with a method for each way to answer."""

    def execute(self, requests):
        """Answer all requests in the way that the first one names."""
        what = json.loads(requests[0].parameters() or "{}").get("do", "")
        if what.startswith("code "):
            error = pb_utils.TritonError("as you wish", getattr(pb_utils.TritonError, what[5:]))
            return [pb_utils.InferenceResponse(error=error) for _ in requests]
        return getattr(self, what.replace(" ", "_") or "echo")(requests)

    def echo(self, requests):
        """Return the input."""
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", one.inputs()[0].as_numpy())])
            for one in requests
        ]

    def value_error(self, requests):
        """Raise."""
        raise ValueError("no")

    def model_exception(self, requests):
        """Raise the module's own exception."""
        raise pb_utils.TritonModelException("not now")

    def too_few(self, requests):
        """Return too few responses."""
        return []

    def no_responses(self, requests):
        """Return an object that is not a response."""
        return [1 for _ in requests]

    def more_outputs(self, requests):
        """Return an undeclared output."""
        x = requests[0].inputs()[0].as_numpy()
        tensors = [pb_utils.Tensor("y", x), pb_utils.Tensor("z", x)]
        return [pb_utils.InferenceResponse(tensors) for _ in requests]

    def no_outputs(self, requests):
        """Return no output at all."""
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def other_type(self, requests):
        """Return an output of an undeclared type."""
        x = requests[0].inputs()[0].as_numpy()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.astype(np.int64))])]

    def by_sender(self, requests):
        """Answer through response senders, and return nothing."""
        for request, response in zip(requests, self.echo(requests)):
            request.get_response_sender().send(
                response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )

    def rescheduled(self, requests):
        """Reschedule the request and answer it at the same time."""
        for request in requests:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return self.echo(requests)

    def about_request(self, requests):
        """Describe the request in the error's text."""
        one = requests[0]
        fields = [
            one.request_id(),
            one.correlation_id(),
            one.timeout(),
            one.flags(),
            json.loads(one.parameters()),  # in whatever order
        ]
        fields.append(sorted(one.requested_output_names()))
        return [
            pb_utils.InferenceResponse(
                error=pb_utils.TritonError(json.dumps(fields, sort_keys=True))
            )
        ]
