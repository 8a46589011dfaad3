"""Intended differences between the native frontend's answers and NVIDIA's gRPC frontend's: a table of decisions.

Everything else must be equal: the code, the message, and an error's text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GrpcReply:
    """The outcome of a call."""

    code: str
    text: str
    messages: Sequence[Any]


@dataclass(frozen=True)
class GrpcDecision:
    """An intended difference."""

    names: str  #: a pattern for names of calls
    why: str
    nvidia: str  #: its code
    native: str
    says: str = ""  #: a pattern for what the native frontend says

    def applies(self, name: str) -> bool:
        """Return whether the decision covers a call of that name."""
        return re.fullmatch(self.names, name, re.DOTALL) is not None

    def holds(self, nvidia: GrpcReply, native: GrpcReply) -> bool:
        """Return whether the two outcomes differ as decided."""
        said = native.text or str(native.messages)
        return (nvidia.code, native.code) == (self.nvidia, self.native) and re.search(
            self.says, said
        ) is not None


_INVALID = "INVALID_ARGUMENT"
_WHO = "the text says what is wrong"
_STRICT = "what makes no sense is refused instead of being ignored or guessed at"

GRPC_DECISIONS = (
    GrpcDecision(
        r"'one' '(x|9+)' .*", _WHO, _INVALID, _INVALID, "version should be an integral value > 0"
    ),
    GrpcDecision(
        r"'one' '-[12]' .*", _WHO, _INVALID, _INVALID, "version should be an integral value > 0"
    ),
    GrpcDecision(r"'one' '1x' .*", _STRICT, "OK", _INVALID, "version string '1x'"),
    GrpcDecision(
        "no input, but raw contents", _WHO, _INVALID, _INVALID, "raw_input_contents has 1 elements"
    ),
    GrpcDecision(
        "input with (no shape|negative shape|huge shape|batch of 9)",
        "bytes are counted before the core looks at the shape",
        _INVALID,
        _INVALID,
        "shape of input|byte size mismatch",
    ),
    GrpcDecision("input with empty shape", _STRICT, "OK", _INVALID, "Expected 0, got 8"),
    GrpcDecision("raw contents: none", _WHO, _INVALID, _INVALID, "Expected 8, got 0"),
    GrpcDecision("raw contents: two", _STRICT, "OK", _INVALID, "2 elements for 1 inputs"),
    GrpcDecision(
        "strings: cut",
        "a model would read beyond the end",
        "OK",
        _INVALID,
        "incomplete string data",
    ),
    GrpcDecision("strings: too long", _WHO, _INVALID, _INVALID, "incomplete string data"),
    GrpcDecision(
        "outputs: (classes as text|a region as number)",
        _WHO,
        _INVALID,
        _INVALID,
        "invalid value type",
    ),
    GrpcDecision(
        "contents of [A-Z0-9]*, 0", _WHO, _INVALID, _INVALID, "fewer values than its shape"
    ),
    GrpcDecision(
        "contents of another type for .*", _WHO, _INVALID, _INVALID, "are in (fp32|int)_contents"
    ),
    GrpcDecision(
        "contents that U?INT8 cannot hold", "values are not cut", "OK", _INVALID, "out of the range"
    ),
    GrpcDecision(
        "contents of B?FP?16", _WHO, _INVALID, _INVALID, "can only be sent in raw_input_contents"
    ),
    GrpcDecision("contents, and raw ones", _WHO, _INVALID, _INVALID, "given twice"),
    GrpcDecision("contents of two types", _WHO, _INVALID, _INVALID, "are in int_contents"),
    GrpcDecision(
        "parameter (sequence_id (True|1.5)|sequence_start 1|sequence_end 'x'|priority (-1|'1'|True)|timeout 'x')",
        _WHO,
        _INVALID,
        _INVALID,
        "but must be",
    ),
    GrpcDecision(
        "parameter (sequence_id|timeout|huge) 18446744073709551615",
        "a uint64 is taken where HTTP takes it",
        _INVALID,
        "OK",
    ),
    GrpcDecision("parameter timeout -1", _STRICT, "OK", _INVALID, "not negative"),
    GrpcDecision("parameter triton_x 1", _WHO, _INVALID, _INVALID, "reserved for Triton"),
    GrpcDecision("parameter without a value", _WHO, _INVALID, _INVALID, "'x' has no value"),
    GrpcDecision(
        "stream with a version that is none",
        _WHO,
        "OK",
        "OK",
        "failed to get model version from specified version string",
    ),
    GrpcDecision("trace: count -2", "the text is that of HTTP", _INVALID, _INVALID, "trace_count"),
    GrpcDecision(
        "log: (info as text|wrong format|verbose as bool)", _WHO, _INVALID, _INVALID, "must be"
    ),
    GrpcDecision("register what is not there", _WHO, "INTERNAL", "INTERNAL", "No such file"),
    GrpcDecision(
        "register without a name", _WHO, "INTERNAL", _INVALID, "the name of a shared memory region"
    ),
    GrpcDecision(
        "register CUDA", "there is no CUDA here", _INVALID, "UNIMPLEMENTED", "needs CUDA's runtime"
    ),
)
