"""The exceptions that a runner raises before sending anything."""

from __future__ import annotations

from pytriton.client.exceptions import PyTritonClientValueError

__all__ = ["RunnerArgumentError"]


class RunnerArgumentError(PyTritonClientValueError, ValueError):
    """An argument of a runner or of a call is invalid. Nothing was started or sent."""
