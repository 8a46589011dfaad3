"""Decodes the body of a request into the arguments of a typed function, and encodes its result."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Union, get_args, get_origin

import msgspec

from pytriton.typed import values
from pytriton.typed.markers import MediaType, UploadFile
from pytriton.typed.multipart import Field, parse_form, parse_multipart
from pytriton.typed.problems import FieldError, Problem, field_errors, pointer_of
from pytriton.typed.signature import (
    Parameter,
    Signature,
    is_binary,
    is_image,
    parts_of,
    strip,
    union_members,
)

__all__ = ["JSON", "Arguments", "RequestDecoder", "ResultEncoder", "media_type_of"]

JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_BINARY = "application/octet-stream"
_INVALID = "The request body is invalid"
_NONFINITE = "the result contains NaN or an infinity, which JSON cannot represent. Return None in its place, and annotate Optional"


class Arguments(typing.NamedTuple):
    """The arguments of a call."""

    args: list[Any]
    kwargs: dict[str, Any]


class RequestDecoder:
    """Decodes request bodies for one signature."""

    def __init__(self, signature: Signature) -> None:
        self._whole = signature.whole
        self._raw = signature.raw
        self._parameters = {one.name: one for one in signature.parameters}
        self._adapters = {
            one.name: adapter
            for one in signature.parameters
            if (adapter := values.pydantic_adapter(one.type)) is not None
        }
        self._specs = {
            one.name: spec
            for one in signature.parameters
            if (spec := values.array_spec(one.type)) is not None
        }
        #: Adapters of the types of form fields, by the id of the type; the signature holds the types.
        self._form_adapters: dict[int, Any] = {}
        #: Parameters whose default is passed by the decoder: it may be changed by a call, or precede another argument.
        self._passed_defaults = [
            one
            for one in signature.parameters
            if not one.required and (one.positional or type(one.default).__hash__ is None)
        ]
        self._special = {*self._adapters, *self._specs}
        self._fields = [(f"p{index}", one) for index, one in enumerate(signature.parameters)]
        self._positional = [one.name for one in takewhile(_is_positional, signature.parameters)]
        self._decode_json = self._json_decoder()

    def decode(self, body: bytes, content_type: str = JSON) -> Arguments:
        """Return the arguments that a body contains.

        Args:
            body: the body
            content_type: value of the Content-Type header; "" if there is none

        Raises:
            Problem: the body is invalid
        """
        if content_type == JSON:  # the common case
            return self._from_json(body)
        media_type = content_type.partition(";")[0].strip().lower()
        raw = self._raw
        if media_type == JSON or media_type.endswith("+json") or not (media_type or raw):
            return self._from_json(body)
        if media_type == _MULTIPART:
            return self._from_fields(parse_multipart(body, content_type))
        if raw is not None:
            if not (body or media_type):  # nothing was sent, not even an empty file
                return self._from_json(body)
            return self.bind({raw.name: self._binary(raw, Field(raw.name, body, None, media_type))})
        if media_type == _FORM:
            # curl -d sends JSON with this Content-Type. In a real form, the brace would be escaped.
            return (
                self._from_json(body) if body[:1] == b"{" else self._from_fields(parse_form(body))
            )
        raise Problem(415, f"Send {JSON}, {_MULTIPART} or {_FORM}, not {media_type}")

    def _json_decoder(self) -> Callable[[bytes], dict[str, Any]]:
        whole = self._whole
        if whole is not None:
            adapter = self._adapters.get(whole.name)
            one = (
                adapter.validate_json
                if adapter is not None
                else msgspec.json.Decoder(whole.type, dec_hook=values.decode_custom).decode
            )
            return lambda body: {whole.name: one(body)}
        fields: list[Any] = []
        for field, parameter in self._fields:
            kind = self._json_type(parameter)
            if parameter.required:
                fields.append((field, kind))
            else:  # The function's own default applies. JSON might not be able to represent it.
                fields.append((field, Union[kind, msgspec.UnsetType], msgspec.UNSET))
        fields.sort(key=len)  # fields with defaults come last
        struct = msgspec.defstruct(
            "Body",
            fields,
            rename={field: parameter.name for field, parameter in self._fields},
            forbid_unknown_fields=True,
        )
        decode = msgspec.json.Decoder(struct, dec_hook=values.decode_custom).decode
        names = [(field, parameter.name) for field, parameter in self._fields]

        def members(body: bytes) -> dict[str, Any]:
            decoded = decode(body)
            found = {}
            for field, name in names:
                value = getattr(decoded, field)
                if value is not msgspec.UNSET:
                    found[name] = value
            return found

        return members

    def _json_type(self, parameter: Parameter) -> Any:
        if parameter.name in self._adapters:
            return msgspec.Raw
        return Any if parameter.name in self._specs else parameter.type

    def _from_json(self, body: bytes) -> Arguments:
        whole = self._whole
        try:
            found = self._members(body or b"{}")
        except msgspec.ValidationError as error:
            raise Problem(422, _INVALID, field_errors(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(400, f"The request body is not valid JSON: {error}") from None
        except ValueError as error:
            if not hasattr(error, "errors"):  # not pydantic.ValidationError
                raise
            if any(one["type"] == "json_invalid" for one in error.errors()):
                raise Problem(
                    400, f"The request body is not valid JSON: {error.errors()[0]['msg']}"
                ) from None
            raise Problem(422, _INVALID, field_errors(error)) from None
        if whole is None and self._special:
            errors: list[FieldError] = []
            for name in [name for name in found if name in self._special]:
                try:
                    found[name] = self._converted(name, found[name])
                except ValueError as error:  # noqa: PERF203  each parameter is reported
                    errors += field_errors(error, name)
            if errors:
                raise Problem(422, _INVALID, tuple(errors))
        return self.bind(found)

    def _members(self, body: bytes) -> dict[str, Any]:
        try:
            return self._decode_json(body)
        except msgspec.ValidationError as error:
            if "`float`" not in str(error):
                raise
        # JSON Schema considers 2.0 an integer.
        return self._decode_json(msgspec.json.encode(_with_integers(msgspec.json.decode(body))))

    def _converted(self, name: str, value: Any) -> Any:
        """Convert a decoded member to the type of its parameter, which msgspec may not support."""
        adapter = self._adapters.get(name)
        if adapter is not None:
            return adapter.validate_json(bytes(value))
        kind = self._parameters[name].type
        if value is None and strip(kind) is not kind:
            return None
        return values.decode_array(value, *self._specs[name])

    def _from_fields(self, fields: Sequence[Field]) -> Arguments:
        by_name: dict[str, list[Field]] = {}
        for field in fields:
            by_name.setdefault(field.name, []).append(field)
        whole = self._whole
        if whole is not None and whole.name not in by_name:
            # The fields of the form are those of the object.
            return self.bind({whole.name: self._object(whole, _texts(by_name))})
        found: dict[str, Any] = {}
        errors: list[FieldError] = []
        for name, parameter in self._parameters.items():
            given = by_name.pop(name, None)
            if given is None:
                if parameter.required:
                    errors.append(FieldError("Missing required field", pointer_of(name)))
                continue
            try:
                found[name] = self._from_form(parameter, given)
            except (ValueError, msgspec.DecodeError, RecursionError) as error:
                errors += field_errors(error, name)
        errors += [FieldError("Unknown field", pointer_of(name)) for name in by_name]
        if errors:
            raise Problem(422, _INVALID, tuple(errors))
        return self.bind(found)

    def _from_form(self, parameter: Parameter, fields: Sequence[Field]) -> Any:
        bare = strip(parameter.type)
        is_list = get_origin(bare) is list or bare is list
        if is_list and (
            len(fields) > 1 or is_binary(*(get_args(bare) or (str,))[:1]) or not _is_json(fields[0])
        ):
            item = dataclasses.replace(parameter, type=(get_args(bare) or (str,))[0])
            return [self._from_form(item, [field]) for field in fields]
        if len(fields) > 1:
            raise ValueError("Expected exactly one field with this name")
        field = fields[0]
        if is_binary(bare):
            return self._binary(parameter, field)
        if id(parameter.type) not in self._form_adapters:
            self._form_adapters[id(parameter.type)] = values.pydantic_adapter(parameter.type)
        adapter = self._form_adapters[id(parameter.type)]
        if adapter is not None:
            return (
                adapter.validate_json(field.data)
                if _is_json(field)
                else adapter.validate_python(field.text)
            )
        if parameter.name in self._specs:
            return values.decode_array(
                msgspec.json.decode(field.data), *self._specs[parameter.name]
            )
        if _is_json(field) and bare is not str:
            return msgspec.json.decode(
                field.data, type=parameter.type, dec_hook=values.decode_custom
            )
        return msgspec.convert(field.text, parameter.type, strict=False)

    def _object(self, whole: Parameter, names: dict[str, list[str]]) -> Any:
        plain = {name: found[0] if len(found) == 1 else found for name, found in names.items()}
        adapter = self._adapters.get(whole.name)
        try:
            if adapter is not None:
                return adapter.validate_python(plain)
            return msgspec.convert(plain, whole.type, strict=False, dec_hook=values.decode_custom)
        except ValueError as error:
            raise Problem(422, _INVALID, field_errors(error)) from None

    def _binary(self, parameter: Parameter, field: Field) -> Any:
        kind = strip(parameter.type)
        if kind is UploadFile:
            return UploadFile(field.data, field.filename, field.content_type or _BINARY)
        if not is_image(kind):
            return kind(field.data)
        try:
            return values.decode_image(field.data)
        except ValueError as error:
            raise Problem(422, _INVALID, field_errors(error, parameter.name)) from None

    def bind(self, found: dict[str, Any]) -> Arguments:
        """Return the arguments of a call, given those of a request by name."""
        for parameter in self._passed_defaults:
            if parameter.name not in found:
                found[parameter.name] = copy.deepcopy(parameter.default)
        return Arguments([found.pop(name) for name in self._positional], found)


class ResultEncoder:
    """Encodes the result that a typed function returns for one request.

    Attributes:
        media_type: the response's Content-Type
    """

    def __init__(self, annotation: Any) -> None:
        self.media_type = media_type_of(annotation)
        self._is_image = is_image(annotation)
        self._encoder = msgspec.json.Encoder(enc_hook=values.encode_custom)
        self._adapter = None
        self._array = values.array_spec(annotation)
        self._is_optional = type(None) in union_members(annotation)
        #: Decoders that check responses, which are not needed if any JSON will do.
        self._decoders: list[msgspec.json.Decoder[Any]] = []
        if self.media_type != JSON or annotation is Any:
            return
        self._adapter = values.pydantic_adapter(annotation)
        if (
            self._adapter is None
            and self._array is None
            and not any(map(_is_not_decoded, parts_of(annotation)))
        ):
            kind = type(None) if annotation is None else annotation
            self._decoders = [
                msgspec.json.Decoder(kind, strict=strict, dec_hook=values.decode_custom)
                for strict in (True, False)
            ]

    def encode(self, result: Any) -> bytes:
        """Return the body of a response.

        Raises:
            TypeError, ValueError: the result does not match the annotation, or cannot be represented in JSON
        """
        if self.media_type == JSON:
            return self._dump(result) if self._adapter is not None else self._as_json(result)
        if self._is_image:
            return values.encode_image(result, self.media_type)
        if isinstance(result, str):
            return result.encode()
        if isinstance(result, (bytes, bytearray, memoryview)):
            return bytes(result)
        raise TypeError(
            f"the function is annotated to return bytes, but returned {type(result).__name__!r}"
        )

    def _as_json(self, result: Any) -> bytes:
        if isinstance(result, msgspec.Raw):  # the handler of another tool has encoded it
            return bytes(result)
        if self._array is not None and values.fits(result, *self._array):
            return self._encoder.encode(result)
        body = self._encoder.encode(result)
        if b"null" in body and values.has_nonfinite(
            msgspec.to_builtins(result, enc_hook=values.encode_custom)
        ):
            raise ValueError(_NONFINITE)
        if self._array is not None and not (result is None and self._is_optional):
            try:
                plain = _with_integers(msgspec.json.decode(body))
                body = self._encoder.encode(values.decode_array(plain, *self._array))
            except ValueError as error:
                raise TypeError(f"the result does not match its annotation: {error}") from None
        if not self._decoders:
            return body
        strict, lax = self._decoders
        try:
            strict.decode(body)
        except msgspec.ValidationError:
            try:
                value = lax.decode(body)  # e.g. 2.0 for an int
            except msgspec.ValidationError as error:
                raise TypeError(f"the result does not match its annotation: {error}") from None
            body = self._encoder.encode(value)
        return body

    def _dump(self, result: Any) -> bytes:
        adapter: Any = self._adapter
        try:
            body = adapter.dump_json(result, by_alias=True, warnings="error")
        except ValueError:  # another type than annotated, such as a dict for a model
            result = adapter.validate_python(result, from_attributes=True)
            try:
                body = adapter.dump_json(result, by_alias=True, warnings="error")
            except ValueError:  # an instance of the model itself, which is not validated again
                plain = adapter.dump_python(result, by_alias=True, warnings=False)
                result = adapter.validate_python(plain)
                body = adapter.dump_json(result, by_alias=True, warnings="error")
        if b"null" in body and values.has_nonfinite(adapter.dump_python(result)):
            raise ValueError(_NONFINITE)
        return bytes(body)


def media_type_of(annotation: Any) -> str:
    """Return the Content-Type of a response, given the annotation of the result."""
    markers = get_args(annotation)[1:] if get_origin(annotation) is typing.Annotated else ()
    for marker in markers:
        if isinstance(marker, MediaType):
            return marker.value
    bare = annotation if not markers else get_args(annotation)[0]
    if is_image(bare):
        return "image/png"
    return _BINARY if bare in (bytes, bytearray, memoryview) else JSON


def _is_positional(parameter: Parameter) -> bool:
    return parameter.positional


def _is_not_decoded(part: Any) -> bool:
    """Return whether decoding a response would run code other than msgspec's: that of a class, or Pillow's."""
    return is_image(part) or hasattr(part, "__post_init__")


def _texts(by_name: dict[str, list[Field]]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for name, fields in by_name.items():
        try:
            texts[name] = [one.text for one in fields]
        except ValueError as error:  # noqa: PERF203  of this field
            raise Problem(422, _INVALID, field_errors(error, name)) from None
    return texts


def _with_integers(value: Any) -> Any:
    """Return decoded JSON with its whole numbers as int."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else value
    if isinstance(value, list):
        return [_with_integers(one) for one in value]
    if isinstance(value, dict):
        return {name: _with_integers(one) for name, one in value.items()}
    return value


def _is_json(field: Field) -> bool:
    """Return whether a form field holds JSON, judging by its Content-Type or its first character."""
    return field.content_type.startswith(JSON) or field.data[:1] in (b"{", b"[")
