"""Converts single values of types that msgspec does not support: arrays, images, files and pydantic's types."""

from __future__ import annotations

import base64
import binascii
import io
import math
from typing import Annotated, Any, get_args, get_origin

import numpy as np

from pytriton._protocol.numpy_types import MASKED, is_masked, lost_by_cast
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.tensor import Tensor, shape_fits
from pytriton.typed.markers import UploadFile
from pytriton.typed.signature import is_class, is_image, parts_of, strip

__all__ = [
    "array_dtype",
    "array_spec",
    "decode_array",
    "decode_custom",
    "decode_image",
    "encode_custom",
    "encode_image",
    "fits",
    "has_nonfinite",
    "pydantic_adapter",
]


def array_spec(annotation: Any) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None] | None:
    """Return the dtype and the shape that the annotation of a numpy array declares; None for any other type.

    A dtype or shape that is not declared is None. The annotation may be ``np.ndarray``, ``npt.NDArray[np.float32]`` or
    ``Annotated[np.ndarray, Tensor((3, -1), np.float32)]``.
    """
    bare = strip(annotation)
    if (get_origin(bare) or bare) is not np.ndarray:
        return None
    dtype = array_dtype(bare)
    for marker in _markers(annotation):
        if isinstance(marker, Tensor):
            return np.dtype(marker.dtype), tuple(marker.shape)
    return dtype, None


def array_dtype(annotation: Any) -> np.dtype[Any] | None:
    """Return the dtype of ``npt.NDArray[...]``; None if the annotation has no concrete dtype."""
    arguments = get_args(annotation)
    scalar = get_args(arguments[1])[:1] if len(arguments) == 2 else ()
    if scalar and isinstance(scalar[0], type) and issubclass(scalar[0], np.generic):
        try:
            return np.dtype(scalar[0])
        except TypeError:  # an abstract type, such as np.floating
            return None
    return None


def decode_array(
    value: Any, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """Convert nested lists to an array.

    Raises:
        ValueError: they are ragged, have another shape, or contain values that the dtype cannot represent
    """
    try:
        array = np.array(value)
    except ValueError:
        raise ValueError("Expected nested lists of equal lengths") from None
    if array.dtype.kind == "O" or (
        array.dtype.kind == "U" and dtype is not None and dtype.kind not in "USO"
    ):
        raise ValueError(f"Expected nested lists of {'numbers' if dtype is None else dtype.name}")
    if shape is not None and not array.size and shape_fits(array.shape, shape[: array.ndim]):
        # An empty list does not show the sizes of the axes inside it.
        array = array.reshape(*array.shape, *(max(size, 0) for size in shape[array.ndim :]))
    if shape is not None and not shape_fits(array.shape, shape):
        raise ValueError(f"Expected an array of shape {list(shape)}, got {list(array.shape)}")
    if dtype is None or array.dtype == dtype:
        return array
    if dtype.kind in "SO":
        return array.astype(object)
    if not array.size:
        return array.astype(dtype)
    if (array.dtype.kind == "b" and dtype.kind != "b") or (
        array.dtype.kind != "b" and dtype.kind == "b"
    ):
        raise ValueError(f"Expected nested lists of {dtype.name}, got {array.dtype.name}")
    if array.dtype.kind == "f" and dtype.kind in "iu":
        raise ValueError(f"Expected nested lists of integers ({dtype.name}), got fractions")
    lost = lost_by_cast(array, dtype)
    # Rounding to a narrower float is fine: the annotation asks for it.
    if lost is not None and not (dtype.kind == "f" and np.isfinite(array.astype(dtype)).all()):
        raise ValueError(f"Expected values that fit into {dtype.name}: {lost}")
    return array.astype(dtype)


def fits(value: Any, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> bool:
    """Return whether a value is an array with this dtype and shape, and JSON can represent its elements."""
    if type(value) is not np.ndarray or (dtype is not None and value.dtype != dtype):
        return False
    if value.dtype.kind not in "biuf" or (shape is not None and not shape_fits(value.shape, shape)):
        return False
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def decode_image(data: bytes) -> Any:
    """Decode the content of an image file into a loaded `PIL.Image.Image`.

    Raises:
        ValueError: Pillow cannot read it
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data))
        # Pillow itself only warns up to twice as many.
        if Image.MAX_IMAGE_PIXELS is not None and math.prod(image.size) > Image.MAX_IMAGE_PIXELS:
            raise ValueError(f"it has more than {Image.MAX_IMAGE_PIXELS} pixels")
        image.load()
    except UnidentifiedImageError:  # its text has the address of an object
        raise ValueError("Expected an image file") from None
    except Exception as error:
        # Pillow raises many kinds for broken files; "decompression bomb" is one.
        raise ValueError(f"Expected an image file: {error}") from error
    return image


def encode_image(image: Any, media_type: str = "image/png") -> bytes:
    """Encode an image as the content of an image file."""
    buffer = io.BytesIO()
    kind = media_type.partition("/")[2]
    image.save(buffer, format={"jpg": "jpeg"}.get(kind, kind))
    return buffer.getvalue()


def decode_custom(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a type that msgspec does not support. For `dec_hook`.

    Raises:
        ValueError: the value is invalid
    """
    spec = array_spec(kind)
    if spec is not None:
        return decode_array(value, *spec)
    if kind is UploadFile or is_image(kind):
        if not isinstance(value, str):
            raise ValueError("Expected a base64-encoded file, as a string")
        try:
            data = base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"Expected base64: {error}") from None
        return UploadFile(data) if kind is UploadFile else decode_image(data)
    raise ValueError(f"{kind!r} cannot be created from JSON")


def encode_custom(value: Any) -> Any:
    """Convert a value of a type that msgspec does not support to one that it supports. For `enc_hook`.

    Raises:
        TypeError: there is no conversion
        ValueError: it is a masked array, which JSON cannot represent
    """
    if isinstance(value, np.ndarray):
        if is_masked(value):
            raise ValueError(MASKED)
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "model_dump"):  # pydantic.BaseModel
        return value.model_dump(mode="json", by_alias=True)
    if is_image(type(value)) or any(is_image(base) for base in type(value).__mro__):
        return encode_image(value)
    if isinstance(value, UploadFile):
        return value.data
    raise TypeError(f"{type(value).__name__!r} cannot be represented in JSON")


def has_nonfinite(value: Any) -> bool:
    """Return whether plain lists, dicts and scalars contain a NaN or an infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(has_nonfinite, value.values()))
    return isinstance(value, (list, tuple, set, frozenset)) and any(map(has_nonfinite, value))


def pydantic_adapter(annotation: Any) -> Any:
    """Return a pydantic `TypeAdapter` for an annotation that uses pydantic's types or constraints; else None.

    Raises:
        PyTritonValidationError: pydantic rejects the annotation
    """
    if not any(map(_is_pydantic, parts_of(annotation))):
        return None
    import pydantic

    try:
        return pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticUserError as error:
        raise PyTritonValidationError(
            f"pydantic rejects the annotation {annotation!r}: {error}"
        ) from error


def _is_pydantic(part: Any) -> bool:
    """Return whether a part of an annotation comes from pydantic, or is one of the constraints that only pydantic applies."""
    if hasattr(part, "__pydantic_core_schema__") or hasattr(part, "__pydantic_validator__"):
        return True
    kind = part if is_class(part) else type(part)
    return any(
        one.__module__.partition(".")[0] in ("pydantic", "pydantic_core", "annotated_types")
        for one in type.mro(kind)
    )


def _markers(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[1:]
    for member in get_args(annotation):
        if get_origin(member) is Annotated:
            return get_args(member)[1:]
    return ()
