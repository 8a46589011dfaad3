"""Typed functions as web APIs: JSON, forms, uploads and streams, derived from a function's annotations."""

from __future__ import annotations

from pytriton.exceptions import HTTPError
from pytriton.typed.markers import MediaType, UploadFile, batchable

__all__ = ["HTTPError", "MediaType", "UploadFile", "batchable"]
