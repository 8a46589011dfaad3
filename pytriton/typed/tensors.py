"""Tensors named after the parameters and the result of a typed function, for clients of Triton's protocols."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import numpy as np

from pytriton._protocol.numpy_types import MASKED, is_masked
from pytriton.model_config import Tensor
from pytriton.model_config.tensor import shape_fits
from pytriton.typed import values
from pytriton.typed.markers import UploadFile
from pytriton.typed.problems import FieldError, Problem, field_errors, pointer_of
from pytriton.typed.signature import (
    Parameter,
    Signature,
    expand,
    is_binary,
    is_class,
    is_image,
    strip,
)

__all__ = ["BODY", "TensorCodec", "tensor_codec"]

#: The input and the output of every typed model, for the body of a request or a response.
BODY = "body"
#: The output for a result that is not an object.
RESULT = "result"
_DTYPES: dict[Any, Any] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    str: np.object_,
    bytes: np.object_,
    bytearray: np.object_,
    memoryview: np.object_,
}
_BYTES = (bytes, bytearray, memoryview)
_INVALID = "The inputs are invalid"


class TensorCodec:
    """Converts tensors to the arguments of a function, and its results to tensors.

    Args:
        parameters: the function's parameters, each with its tensor
        fields: the types of the results, by the names of their tensors
        is_object: whether a result is an object with these fields

    Attributes:
        inputs: one tensor for each parameter, all optional: requests may contain the body instead
        outputs: one tensor for the result, or for each of its fields
        names: the names of the outputs
    """

    def __init__(
        self,
        parameters: Sequence[tuple[Parameter, Tensor]],
        fields: Mapping[str, tuple[Any, Tensor]],
        *,
        is_object: bool,
    ) -> None:
        self.inputs = [tensor for _, tensor in parameters]
        self.outputs = [tensor for _, tensor in fields.values()]
        self.names = list(fields)
        self._parameters = [_Argument(one, tensor) for one, tensor in parameters]
        self._fields = fields
        self._is_object = is_object

    def decode(self, inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        """Return the arguments in each row of a request, without those that the request omits.

        Args:
            inputs: name -> array
            count: number of rows

        Raises:
            Problem: an input is missing or invalid
        """
        rows: list[dict[str, Any]] = [{} for _ in range(count)]
        errors: list[FieldError] = []
        for argument in self._parameters:
            name = argument.name
            if name not in inputs:
                if argument.is_required:
                    errors.append(FieldError("Missing required input", pointer_of(name)))
                continue
            try:
                for row, array in zip(rows, inputs[name]):
                    row[name] = argument.decode(array)
            except ValueError as error:
                errors += field_errors(error, name)
        if errors:
            raise Problem(422, _INVALID, tuple(errors))
        return rows

    def encode(self, results: Sequence[Any], requested: Sequence[str]) -> dict[str, Any]:
        """Convert the results for a request's rows to tensors.

        Args:
            results: one result for each row
            requested: the names of the outputs to return; others than these tensors are ignored

        Raises:
            TypeError, ValueError: a result does not match its annotation, or the rows have different shapes
        """
        return {
            name: self._output(name, kind, tensor, results)
            for name, (kind, tensor) in self._fields.items()
            if name in requested
        }

    def _output(self, name: str, kind: Any, tensor: Tensor, results: Sequence[Any]) -> Any:
        try:
            found = [self._field(result, name) for result in results]
            rows = [_encode(value, kind, tensor) for value in found]
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"the result does not fit into output {name!r}: {error}") from error
        if any(row.shape != rows[0].shape for row in rows):
            raise ValueError(
                f"the rows of output {name!r} have different shapes, so they must be requested one by one"
            )
        return np.stack(rows)

    def _field(self, result: Any, name: str) -> Any:
        if not self._is_object:
            return result
        if isinstance(result, Mapping):
            if name not in result:
                raise TypeError("it has no such key")
            return result[name]
        return getattr(result, name)


class _Argument:
    """Decodes the rows of one input."""

    def __init__(self, parameter: Parameter, tensor: Tensor) -> None:
        self.name = parameter.name
        self.is_required = parameter.required
        self._type = parameter.type
        self._is_array = values.array_spec(parameter.type) is not None
        self._adapter = values.pydantic_adapter(parameter.type)
        self._is_text = tensor.dtype is np.object_
        self._element = _element(parameter.type)
        self._is_scalar = get_origin(strip(parameter.type)) is not list

    def decode(self, array: Any) -> Any:
        """Convert the array of one row to the argument.

        Raises:
            ValueError: it is invalid
        """
        if self._is_array:
            return array
        value = array.tolist()
        if self._is_text:
            value = self._strings(value)
        if self._is_scalar:
            (value,) = value
        if self._element is UploadFile or is_image(self._element) or self._element in _BYTES:
            return value
        if self._adapter is not None:
            return self._adapter.validate_python(value)
        return msgspec.convert(value, self._type)

    def _strings(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._strings(one) for one in value]
        if self._element is UploadFile:
            return UploadFile(value)
        if is_image(self._element):
            return values.decode_image(value)
        return self._element(value) if self._element in _BYTES else value.decode()


def tensor_codec(signature: Signature) -> TensorCodec | None:
    """Return the codec of a function; None if one of its types has no tensor form, or a name is reserved for the
    body.
    """
    parameters = [(one, _tensor(one.name, one.type, optional=True)) for one in signature.parameters]
    fields = _fields(signature.result)
    is_object = fields is not None
    outputs = {
        name: (kind, _tensor(name, kind))
        for name, kind in (fields or {RESULT: signature.result}).items()
    }
    if BODY in {*outputs, *(one.name for one, _ in parameters)}:
        return None
    if any(tensor is None for _, tensor in (*parameters, *outputs.values())):
        return None
    return TensorCodec(
        typing.cast("list[tuple[Parameter, Tensor]]", parameters),
        typing.cast("dict[str, tuple[Any, Tensor]]", outputs),
        is_object=is_object,
    )


def _fields(annotation: Any) -> dict[str, Any] | None:
    """Return the field types of a dataclass, struct, TypedDict or model that always has all its fields; otherwise None."""
    if not is_class(annotation) or getattr(annotation, "__optional_keys__", None):
        return None
    if not (
        dataclasses.is_dataclass(annotation)
        or issubclass(annotation, msgspec.Struct)
        or hasattr(annotation, "__required_keys__")  # a TypedDict
        or hasattr(annotation, "model_fields")
    ):
        return None
    if getattr(annotation, "__pydantic_root_model__", False):
        return None
    if hasattr(annotation, "model_fields"):
        # pydantic has resolved these. A worker may lack the names in the annotations.
        return {
            name: expand(one.annotation if not one.metadata else _annotated(one))
            for name, one in annotation.model_fields.items()
        } or None
    hints = typing.get_type_hints(annotation, include_extras=True)
    names = (
        [one.name for one in dataclasses.fields(annotation)]
        if dataclasses.is_dataclass(annotation)
        else getattr(annotation, "__struct_fields__", None) or hints
    )
    return {name: expand(hints[name]) for name in names} or None


def _annotated(field: Any) -> Any:
    return Annotated[tuple([field.annotation, *field.metadata])]


def _tensor(name: str, annotation: Any, *, optional: bool = False) -> Tensor | None:
    """Return the tensor for a type; None if there is none.

    Only an input may be Optional: without a value, the request does not contain it. Only an input may be of nested
    lists: those of a result can have different lengths.
    """
    if not optional and _without_markers(annotation) is not strip(annotation):
        return None
    spec = values.array_spec(annotation)
    if spec is not None:
        dtype, shape = spec
        if dtype is None or shape is None:
            return None
        return Tensor(shape, dtype, name, optional)
    kind = strip(annotation)
    sizes: tuple[int, ...] = ()
    while get_origin(kind) is list:
        (kind,) = get_args(kind)
        if _without_markers(kind) is not strip(kind):
            return None
        kind, sizes = strip(kind), (*sizes, -1)
    if len(sizes) > 1 and not optional:
        return None
    element = _element(annotation)
    scalar = np.object_ if is_binary(element) else _DTYPES.get(element)
    if scalar is None or (element is UploadFile and not optional):
        return None
    return Tensor(sizes or (1,), scalar, name, optional)


def _element(annotation: Any) -> Any:
    """Return the type of a scalar, or of the elements of nested lists; for a Literal or an enum, that of its values."""
    kind = strip(annotation)
    while get_origin(kind) is list:
        kind = strip(get_args(kind)[0])
    members: Sequence[Any] = ()
    if get_origin(kind) is Literal:
        members = get_args(kind)
    elif is_class(kind) and issubclass(kind, enum.Enum):
        members = [one.value for one in kind]
    kinds = {type(one) for one in members}
    return kinds.pop() if len(kinds) == 1 else kind


def _without_markers(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _encode(value: Any, kind: Any, tensor: Tensor) -> Any:
    """Return one row of an output."""
    shape = tensor.shape
    if values.array_spec(kind) is not None:
        if is_masked(value):
            raise ValueError(MASKED)
        array = np.asarray(value)
        dtype = np.dtype(tensor.dtype)
        if dtype.kind in "SUO" and array.dtype.kind in "SUO":
            array = array.astype(object)
        else:
            array = array.astype(dtype, casting="same_kind", copy=False)
    else:
        if strip(kind) in _BYTES and isinstance(value, str):
            value = value.encode()  # as in a body
        plain = msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=values.encode_custom)
        if not is_image(kind):
            plain = msgspec.convert(plain, kind, strict=False, builtin_types=_BYTES)
            plain = msgspec.to_builtins(plain, builtin_types=_BYTES)
        plain = bytes(plain) if isinstance(plain, (bytearray, memoryview)) else plain
        scalar = shape == (1,) and not isinstance(plain, list)
        array = np.array([plain] if scalar else plain, tensor.dtype)
        array = array.reshape((0,) * len(shape)) if array.size == 0 else array
    if not shape_fits(array.shape, shape):
        raise ValueError(f"expected the shape {list(shape)}, got {list(array.shape)}")
    return array
