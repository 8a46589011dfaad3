"""Intended differences between the native frontend's answers and NVIDIA's HTTP frontend's: a table of decisions.

Everything else must be equal: the status, the headers that describe the body, tensors byte for byte, JSON by value, and
an error's text.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Headers that describe the body.
HEADERS = ("inference-header-content-length", "content-encoding", "content-type")


@dataclass(frozen=True)
class Reply:
    """An answer of one of the two frontends."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def content(self) -> Any:
        """The body: the JSON value followed by its tensors, a list for events, or bytes otherwise."""
        size = int(self.headers.get("inference-header-content-length", len(self.body)))
        try:
            if self.body.startswith(b"data: "):
                return [json.loads(event[6:]) for event in self.body.split(b"\n\n") if event]
            parsed = json.loads(self.body[:size])
        except ValueError:
            return self.body
        return [parsed, self.body[size:]] if self.body[size:] else parsed

    @property
    def error(self) -> str | None:
        """The error's text."""
        content = self.content
        return (
            content.get("error")
            if isinstance(content, dict) and list(content) == ["error"]
            else None
        )


@dataclass(frozen=True)
class Decision:
    """An intended difference."""

    names: str  #: a pattern for names of requests
    why: str
    nvidia: int | None  #: its status; None: it is not asked, because this ends it
    native: int
    says: str = ""  #: a pattern for what the native frontend's body has

    def applies(self, name: str) -> bool:
        """Return whether the decision covers a request of that name."""
        return re.fullmatch(self.names, name, re.DOTALL) is not None

    def holds(self, nvidia: Reply | None, native: Reply) -> bool:
        """Return whether the two answers differ as decided."""
        theirs = nvidia.status if nvidia else None
        said = native.body.decode(errors="replace")
        return (theirs, native.status) == (self.nvidia, self.native) and re.search(
            self.says, said
        ) is not None


_WHO = "the text says which field it is about, or what is wrong with it"
_STRICT = "what makes no sense is refused instead of being ignored or guessed at"

DECISIONS = (
    Decision(
        "classes of BYTES", "NVIDIA's executable crashes", None, 400, "unsupported type 'BYTES'"
    ),
    Decision("get /v2/models/%6Fne/ready", "a path may be written with escapes", 400, 200),
    Decision("HEAD live", "HEAD is answered where GET is", 405, 200),
    Decision("get .*/versions/9+", _WHO, 400, 400, "version should be an integral value > 0"),
    Decision("type B?FP?16, answered as JSON", _WHO, 400, 400, "for output OUTPUT"),
    Decision(
        r"body '\{\"inputs\":\[(5|\{\"name\":5\})\]\}'", _WHO, 400, 400, "not an object|'name'"
    ),
    Decision(
        r"input with shape \[(0, 2)?\]",
        "the data is counted before the core looks at the shape",
        400,
        400,
        "Shape does not match",
    ),
    Decision(r"input with parameters (5|\[\])", _STRICT, 200, 400, "parameters"),
    Decision(
        "a member twice",
        "two values for one name are refused: which one is meant?",
        200,
        400,
        "'id' occurs twice",
    ),
    Decision("number -0", "it is a number with a sign", 200, 200, "-0"),
    Decision(
        "number -?1e39",
        "a number that its type cannot hold is refused instead of becoming infinite",
        200,
        400,
        "out of the range of FP32",
    ),
    Decision(
        "outputs: a region without a size|input in a region without a size",
        _WHO,
        404,
        400,
        "needs 'shared_memory_byte_size'",
    ),
    Decision(
        "binary, (too little|too much|size 9223372036854775808|size 0)", _WHO, 400, 400, "bytes"
    ),
    Decision(
        "binary, header length '(-1|x||9+)'", _WHO, 400, 400, "Inference-Header-Content-Length"
    ),
    Decision("binary strings, no UTF-8", "JSON is valid UTF-8", 200, 400, "not valid UTF-8"),
    Decision("parameter sequence_id -5", "gRPC takes negative ones as well", 500, 200),
    Decision("encoded '(gzip|deflate)' b'non' 8", _WHO, 400, 400, "incorrect header check"),
    Decision("encoded 'gzip' b'.{1,20}' (83|93)", "a damaged body is refused", 200, 400, "gzip"),
    Decision(
        "encoded '(br|gzip, deflate)' .*",
        "415 is HTTP's status for it",
        501,
        415,
        "Unsupported Content-Encoding",
    ),
    Decision(
        "encoded '(|GZIP)' .*",
        "names of encodings are the same in capitals; an empty one is none",
        501,
        200,
    ),
    Decision(
        "accepting .*(gzip|deflate).*",
        "a body that would not become smaller is sent as it is",
        200,
        200,
        '"OUTPUT0"',
    ),
    Decision(
        "generate(_stream)? of (one|many|types): failing",
        "the status is that of an inference that fails",
        400,
        500,
        "oh",
    ),
    Decision(
        "generate of many: (parameters|none at all|two answers)",
        "an error has the status of one",
        200,
        400,
        "exactly 1 response",
    ),
    Decision(r"(index|load one|trace) '?\[\]'?", _STRICT, 200, 400, "not a JSON object"),
    Decision("unload single '.*5}}'", _STRICT, 200, 400, "parameter|unload_dependents"),
    Decision("unload single 'x'", _STRICT, 200, 400, "failed to parse"),
    Decision(
        "repository local/index",
        "a repository that is named is not ignored",
        200,
        501,
        "not supported",
    ),
    Decision("log {'log_format': 'x'}", "it is the client's fault", 503, 400, "log_format"),
    Decision("register system .*nobody-has-this.*", _WHO, 500, 500, "No such file"),
    Decision("register (system|cuda) (\\[\\]|x)", _WHO, 400, 400, "not a JSON object"),
    Decision("register cuda {('key'.*)?}", _WHO, 400, 400, "raw_handle/b64|Unable to parse"),
    Decision("register cuda .*AAAA.*", "there is no CUDA here", 400, 501, "needs CUDA's runtime"),
)

#: Texts of NVIDIA's frontend about malformed requests, with status 500.
_MALFORMED = re.compile(
    "failed to parse the request|Unable to|attempt to|unexpected error on creating|failed to load|failed to get request params"
    "|output tensor shape does not match"
)


def is_the_clients_fault(nvidia: Reply, native: Reply) -> bool:
    """Return whether the answer to a malformed request is 400 instead of NVIDIA's 500. The text may be better, too."""
    return (
        (nvidia.status, native.status) == (500, 400)
        and bool(native.error)
        and bool(_MALFORMED.match(nvidia.error or ""))
    )


def is_same(nvidia: Reply, native: Reply) -> bool:
    """Return whether two answers are equivalent. Errors are JSON with its content type, unlike some of NVIDIA's."""
    is_error = nvidia.status >= 400 and native.headers.get("content-type") == "application/json"
    headers = HEADERS[: -1 if is_error else None]
    return (
        nvidia.status == native.status
        and all(nvidia.headers.get(name) == native.headers.get(name) for name in headers)
        and is_equal(nvidia.content, native.content)
    )


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal.

    Members have no order. We write FP32 values as the shortest number that reads back the same; NVIDIA writes doubles.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other) or _is_same_float(one, other)
    return type(one) is type(other) and bool(one == other)


def _is_same_float(one: float, other: float) -> bool:
    try:
        return struct.pack("f", one) == struct.pack("f", other)
    except OverflowError:
        return False
