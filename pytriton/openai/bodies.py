"""The fields of API requests that are validated, with their types and limits. Other fields are passed on."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Optional, TypeVar, Union

import msgspec
from msgspec import Meta

from pytriton.openai.errors import APIError

__all__ = [
    "BODIES",
    "MAX_VALUES",
    "Body",
    "ChatBody",
    "CompletionBody",
    "EmbeddingsBody",
    "ResponsesBody",
    "TensorsBody",
    "read_body",
]

_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Temperature = Annotated[float, Meta(ge=0, le=2)]
_Probability = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
_Alternatives = Annotated[int, Meta(ge=0, le=20)]
_Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Stop = Union[str, Annotated[list[str], Meta(max_length=64)], None]
_Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
#: An assistant's message may consist only of tool calls. OpenAI allows null as the result of a function.
_MAY_SAY_NOTHING = ("assistant", "function")


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a stream."""

    include_usage: Optional[bool] = False


class FunctionBody(msgspec.Struct, frozen=True):
    """A function that a model may call, in the format of chat completions."""

    name: str
    description: Optional[str] = None
    parameters: Optional[dict[str, Any]] = None
    strict: Optional[bool] = None


class ToolBody(msgspec.Struct, frozen=True):
    """A tool. Types other than "function" are passed on unchanged. Tools of type "mcp" run on a server."""

    type: Optional[str] = None
    function: Optional[FunctionBody] = None
    server_url: Optional[str] = None

    def __post_init__(self) -> None:
        """Require a function description; raise ValueError if it is missing."""
        if self.type == "function" and self.function is None:
            raise ValueError("Object missing required field `function`")


class FlatToolBody(ToolBody, frozen=True):
    """A tool in `/v1/responses`, where the function's description is next to its type."""

    name: Optional[str] = None
    parameters: Optional[dict[str, Any]] = None

    def __post_init__(self) -> None:
        """Require a function name; raise ValueError if it is missing."""
        if self.type == "function" and self.function is None and self.name is None:
            raise ValueError("Object missing required field `name`")


class _CalledBody(msgspec.Struct, frozen=True):
    name: str
    arguments: str = ""


class CallBody(msgspec.Struct, frozen=True):
    """A tool call that the assistant made earlier in the conversation."""

    id: Optional[str] = None
    type: Optional[str] = None
    function: Optional[_CalledBody] = None


class _SchemaBody(msgspec.Struct, frozen=True):
    name: str
    schema: Optional[dict[str, Any]] = None
    strict: Optional[bool] = None


class FormatBody(msgspec.Struct, frozen=True):
    """The required format of a response."""

    type: str
    json_schema: Optional[_SchemaBody] = None

    def __post_init__(self) -> None:
        """Require a schema if the type needs one; raise ValueError if it is missing."""
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("Object missing required field `json_schema`")


class _TextFormatBody(msgspec.Struct, frozen=True):
    type: str
    name: Optional[str] = None
    schema: Optional[dict[str, Any]] = None


class TextBody(msgspec.Struct, frozen=True):
    """The required format of a response in `/v1/responses`."""

    format: Optional[_TextFormatBody] = None


class ReasoningBody(msgspec.Struct, frozen=True):
    """The requested amount of reasoning, in `/v1/responses`."""

    effort: Optional[str] = None


class MessageBody(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: _Role
    content: Union[str, list[Union[str, dict[str, Any]]], None] = None
    name: Optional[str] = None
    tool_calls: Optional[list[CallBody]] = None
    tool_call_id: Optional[str] = None
    refusal: Optional[str] = None

    def __post_init__(self) -> None:
        """Require `content` if the role needs it.

        Raises:
            ValueError: it is missing. The message has the form of msgspec's error for a missing field
        """
        if self.content is None and self.role not in _MAY_SAY_NOTHING:
            raise ValueError("Object missing required field `content`")


class Body(msgspec.Struct, kw_only=True, frozen=True):
    """The fields common to the bodies of all routes."""

    model: str = ""
    user: Optional[str] = None
    stream: Optional[bool] = False


class _Sampling(Body, kw_only=True, frozen=True):
    temperature: Optional[_Temperature] = None
    top_p: Optional[_Probability] = None


class _Choosing(_Sampling, kw_only=True, frozen=True):
    stream_options: Optional[StreamOptions] = None
    n: Optional[_Choices] = None
    seed: Optional[_Seed] = None
    stop: _Stop = None
    max_tokens: Optional[_Positive] = None
    presence_penalty: Optional[_Penalty] = None
    frequency_penalty: Optional[_Penalty] = None
    logit_bias: Optional[dict[str, float]] = None


class ChatBody(_Choosing, kw_only=True, frozen=True):
    """The body of a request to `/v1/chat/completions`."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: Optional[_Positive] = None
    tools: Optional[list[ToolBody]] = None
    tool_choice: Union[str, dict[str, Any], None] = None
    parallel_tool_calls: Optional[bool] = None
    response_format: Optional[FormatBody] = None
    logprobs: Optional[bool] = None
    top_logprobs: Optional[_Alternatives] = None
    reasoning_effort: Optional[str] = None
    metadata: Optional[dict[str, Any]] = None


class CompletionBody(_Choosing, kw_only=True, frozen=True):
    """The body of a request to `/v1/completions`."""

    prompt: Union[str, list[Union[str, _Token, list[_Token]]]]
    suffix: Optional[str] = None
    echo: Optional[bool] = None
    best_of: Optional[_Choices] = None
    #: 0, together with `echo`, requests only the probabilities of the prompt.
    max_tokens: Optional[Annotated[int, Meta(ge=0, le=2**31 - 1)]] = None
    logprobs: Optional[_Alternatives] = None


class ResponsesBody(_Sampling, kw_only=True, frozen=True):
    """The body of a request to `/v1/responses`."""

    input: Union[str, list[dict[str, Any]]]
    instructions: Optional[str] = None
    max_output_tokens: Optional[_Positive] = None
    tools: Optional[list[FlatToolBody]] = None
    tool_choice: Union[str, dict[str, Any], None] = None
    parallel_tool_calls: Optional[bool] = None
    text: Optional[TextBody] = None
    reasoning: Optional[ReasoningBody] = None
    top_logprobs: Optional[_Alternatives] = None
    metadata: Optional[dict[str, Any]] = None
    previous_response_id: Optional[str] = None
    background: Optional[bool] = None


class EmbeddingsBody(Body, kw_only=True, frozen=True):
    """The body of a request to `/v1/embeddings`."""

    input: Union[str, Annotated[list[Union[str, _Token, list[_Token]]], Meta(min_length=1)]]
    encoding_format: Optional[Literal["float", "base64"]] = None
    dimensions: Optional[_Positive] = None


class TensorBody(msgspec.Struct, frozen=True):
    """A tensor of strings, in KServe's format."""

    name: Literal["input_text"]
    data: Annotated[list[str], Meta(min_length=1)]
    datatype: Literal["BYTES"] = "BYTES"


class TensorsBody(msgspec.Struct, frozen=True):
    """The body of a request to `/v2/models/NAME/infer`."""

    inputs: Annotated[list[TensorBody], Meta(min_length=1, max_length=1)]


BODIES: dict[str, type[Body]] = {
    "chat": ChatBody,
    "completions": CompletionBody,
    "responses": ResponsesBody,
    "embeddings": EmbeddingsBody,
}

_B = TypeVar("_B", bound=msgspec.Struct)
#: Maximum number of JSON values in a body: objects, arrays, strings, numbers. Each one may take as little as two
#: bytes in the body, but some hundred bytes of memory once parsed.
MAX_VALUES = 1 << 19
#: The location at the end of msgspec's errors: " - at `$.messages[0].role`".
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")


def read_body(data: Union[bytes, dict[str, Any]], kind: type[_B]) -> _B:
    """Parse a request's body (bytes or parsed JSON) and return the fields that are validated.

    Raises:
        APIError: the body is not JSON, or a known field is invalid; the message names the field.
    """
    try:
        if isinstance(data, dict):
            return msgspec.convert(data, kind, strict=True)
        if not _has_few_values(data):
            raise APIError(
                f"The body has more than {MAX_VALUES} JSON values, the limit of this server.",
                413,
                code="request_too_large",
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise APIError(
            f"The body is not valid JSON in UTF-8: {error}.", code="invalid_json"
        ) from None
    except RecursionError:
        raise APIError("The body is nested too deeply.", code="invalid_json") from None


def _has_few_values(data: bytes) -> bool:
    """Return whether a JSON text has at most `MAX_VALUES` values: its commas, arrays and objects are counted."""
    if _separators(data) <= MAX_VALUES:
        return True
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")  # the remaining quotes delimit strings
    if plain.count(b'"') > 2 * MAX_VALUES:
        return False
    return _separators(b"".join(plain.split(b'"')[::2])) <= MAX_VALUES


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _wrong_field(text: str) -> APIError:
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    what = _PLACE.sub("", text)
    missing = _MISSING.search(text)
    if missing:
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return APIError(
            f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter"
        )
    where = f" for '{path}'" if path else ""
    return APIError(f"Invalid value{where}: {what}.", param=path or None, code="invalid_value")
