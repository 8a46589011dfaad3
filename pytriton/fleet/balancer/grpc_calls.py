"""Calls of gRPC as the balancer sees them: the model that the first message names, or that it cannot be seen.

HAProxy reads the name in what has come of a call when it decides. A client may cut its message into frames wherever it
likes, so the rules wait for as much as has to come before a node answers, and never for more: what does not come in
time costs the client its call.
"""

from __future__ import annotations

#: Changes and facts of one node, which must not be asked of whichever comes next.
_OF_ONE_NODE = (
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings",
)  # fmt: skip
#: Of gRPC: INVALID_ARGUMENT, PERMISSION_DENIED.
_INVALID, _DENIED = 3, 7
#: UNIMPLEMENTED: what gRPC says of a compression that the server does not take.
_UNIMPLEMENTED = 12
_PACKED_REFUSAL = (
    "the balancer finds no model in a compressed message, and no node is known to serve it: "
    "send it without compression"
)
_UNNAMED_REFUSAL = (
    "the balancer finds no name of a model at the beginning of the message, "
    "and no node is known to serve it"
)
#: A call whose messages name a model.
_NAMES_MODEL = "{ path,url_dec -m beg /inference.GRPCInferenceService/Model }"
_IS_STREAM = "{ var(txn.stream) -m bool }"
_IS_PACKED = "{ var(txn.packed) -m bool }"
_IS_UNNAMED = "{ var(txn.unnamed) -m bool }"
#: Before each message: whether it is compressed, and its length.
_HEAD = 5
#: A name ends within so many bytes, with what is before it: names have at most 255.
_NAMED = 300
#: What may be missing of a short message in a stream. After a name come more bytes than that: a tensor takes 14.
_STEP = 8
_WAIT = "http-request wait-for-body time"
#: For the rest of a message that has begun.
_REST = "10s"


def refuse_calls_of_one_node(why: str) -> list[str]:
    """Return the rule that refuses what changes one node only."""
    calls = f"path,url_dec -m reg ^/inference[.]GRPCInferenceService/({'|'.join(_OF_ONE_NODE)})$"
    return [f"    {_refusal(_DENIED, why)} if {{ {calls} }}"]


def find_model(stream_wait: str) -> list[str]:
    """Return the rules that find the model, or that it cannot be seen (`use_packed`).

    Args:
        stream_wait: how long a stream may be open without a message
    """
    return [
        "    http-request set-var(txn.stream) bool(true) "
        "if { path,url_dec -m str /inference.GRPCInferenceService/ModelStreamInfer }",
        f"    {_WAIT} {stream_wait} at-least {_HEAD} if {_IS_STREAM}",
        # The body of any other call ends with its one message.
        f"    {_WAIT} {_REST} at-least {_NAMED} if {_NAMES_MODEL} !{_IS_STREAM}",
        f"    http-request set-var(txn.packed) bool(true) if {_NAMES_MODEL} {{ req.body,bytes(0,1) -m bin 01 }}",
        f"    http-request set-var(txn.size) req.body,bytes(1,4),hex,hex2i,add({_HEAD}) if {_NAMES_MODEL}",
        *_wait_in_stream(),
        f"    http-request set-var(txn.model) req.body,bytes({_HEAD}),protobuf(1) if {_NAMES_MODEL} !{_IS_PACKED}",
        # Without any field it asks for all models, or says nothing.
        f"    http-request set-var(txn.unnamed) bool(true) if {_NAMES_MODEL} !{_IS_PACKED} "
        f"!{{ var(txn.model) -m found }} {{ var(txn.size) -m int gt {_HEAD} }}",
    ]


def refuse_hidden(sequence: str, *, served: bool) -> list[str]:
    """Return the rules that refuse calls of which the model cannot be seen, where no node can answer them.

    Args:
        sequence: the condition that a call is of a sequence. Nobody knows which nodes have the model of one, and so
            which of them its other messages reach
        served: there is a node that has all models
    """
    also = f" {sequence}" if served else ""
    return [
        f"    {_refusal(_UNIMPLEMENTED, _PACKED_REFUSAL, 'hdr grpc-accept-encoding identity ')} if {_IS_PACKED}{also}",
        f"    {_refusal(_INVALID, _UNNAMED_REFUSAL)} if {_IS_UNNAMED}{also}",
    ]


def use_packed(backend: str) -> list[str]:
    """Return the rules that send calls of which the model cannot be seen to the nodes that have all."""
    return [f"    use_backend {backend} if {one}" for one in (_IS_PACKED, _IS_UNNAMED)]


def _wait_in_stream() -> list[str]:
    """Return the rules that wait for the first message of a stream, which may be the only one for a long time."""
    rules = [
        f"    {_WAIT} {_REST} at-least {_NAMED} if {_IS_STREAM} {{ var(txn.size) -m int ge {_NAMED} }}"
    ]
    for least in range(_STEP, _NAMED, _STEP):
        last = min(least + _STEP, _NAMED) - 1
        rules.append(
            f"    {_WAIT} {_REST} at-least {least} if {_IS_STREAM} {{ var(txn.size) -m int {least}:{last} }}"
        )
    return rules


def _refusal(status: int, why: str, more: str = "") -> str:
    return (
        "http-request return status 200 hdr content-type application/grpc "
        f"hdr grpc-status {status} {more}hdr grpc-message '{why}'"
    )
