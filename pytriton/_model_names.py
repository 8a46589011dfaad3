"""Validation of model names."""

from __future__ import annotations

import re

from pytriton.exceptions import PyTritonValidationError

__all__ = ["validate_model_name"]

_MODEL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def validate_model_name(model_name: str) -> None:
    """Raise `PyTritonValidationError` unless Triton and the file system can use this name."""
    if not isinstance(model_name, str):
        raise PyTritonValidationError(f"Model name has to be a string, got {model_name!r}")
    if not model_name:
        raise PyTritonValidationError("Model name cannot be empty")
    if not _MODEL_NAME.fullmatch(model_name):
        raise PyTritonValidationError(
            "Model name can only contain alphanumeric characters, dots, underscores and dashes. "
            f"Got {model_name!r}"
        )
    if set(model_name) == {"."}:  # a folder is named after the model
        raise PyTritonValidationError(f"Model name cannot consist of dots only. Got {model_name!r}")
