"""HAProxy rules that route gRPC calls by the model named in the first message, or handle calls that hide the name.

HAProxy routes a call by the data that has arrived when it evaluates the rules. Clients may split a message into
frames arbitrarily, so the rules wait until enough data has arrived. They must not wait for more than a node needs to
answer: if the data does not arrive in time, the call fails.
"""

from __future__ import annotations

#: Calls that change or query a single node. The balancer must not send them to an arbitrary node.
_OF_ONE_NODE = (
    "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings",
)  # fmt: skip
#: gRPC's INVALID_ARGUMENT, PERMISSION_DENIED.
_INVALID, _DENIED = 3, 7
#: UNIMPLEMENTED: gRPC's status for a compression that the server does not support.
_UNIMPLEMENTED = 12
_PACKED_REFUSAL = (
    "the balancer cannot read the name of the model in a compressed message, and no node serves all models: send the "
    "message without compression"
)
_UNNAMED_REFUSAL = (
    "the balancer finds no model name at the start of the message, and no node serves all models"
)
#: Condition for a call whose messages name a model.
_NAMES_MODEL = "{ path,url_dec -m beg /inference.GRPCInferenceService/Model }"
_IS_STREAM = "{ var(txn.stream) -m bool }"
_IS_PACKED = "{ var(txn.packed) -m bool }"
_IS_UNNAMED = "{ var(txn.unnamed) -m bool }"
#: Size of each message's prefix, which contains the compression flag and the length.
_HEAD = 5
#: A model's name ends within this many bytes, including the prefixes, because names have at most 255 bytes.
_NAMED = 300
#: Number of bytes of a short message that may still be missing. More bytes than that follow a model's name,
#: because a tensor takes 14.
_STEP = 8
_WAIT = "http-request wait-for-body time"
#: Timeout for the rest of a message that has begun.
_REST = "10s"


def reject_single_node_calls(why: str) -> list[str]:
    """Return the rule that rejects calls that would change only a single node."""
    calls = f"path,url_dec -m reg ^/inference[.]GRPCInferenceService/({'|'.join(_OF_ONE_NODE)})$"
    return [f"    {_refusal(_DENIED, why)} if {{ {calls} }}"]


def find_model(stream_wait: str) -> list[str]:
    """Return the rules that extract the model's name, or mark the call as one whose model HAProxy cannot see.

    Args:
        stream_wait: how long a stream may be open before its first message
    """
    return [
        "    http-request set-var(txn.stream) bool(true) "
        "if { path,url_dec -m str /inference.GRPCInferenceService/ModelStreamInfer }",
        f"    {_WAIT} {stream_wait} at-least {_HEAD} if {_IS_STREAM}",
        # The body of any other call ends with its only message.
        f"    {_WAIT} {_REST} at-least {_NAMED} if {_NAMES_MODEL} !{_IS_STREAM}",
        f"    http-request set-var(txn.packed) bool(true) if {_NAMES_MODEL} {{ req.body,bytes(0,1) -m bin 01 }}",
        f"    http-request set-var(txn.size) req.body,bytes(1,4),hex,hex2i,add({_HEAD}) if {_NAMES_MODEL}",
        *_wait_in_stream(),
        f"    http-request set-var(txn.model) req.body,bytes({_HEAD}),protobuf(1) if {_NAMES_MODEL} !{_IS_PACKED}",
        # A message without fields requests all models, or is empty.
        f"    http-request set-var(txn.unnamed) bool(true) if {_NAMES_MODEL} !{_IS_PACKED} "
        f"!{{ var(txn.model) -m found }} {{ var(txn.size) -m int gt {_HEAD} }}",
    ]


def reject_hidden(sequence: str, *, served: bool) -> list[str]:
    """Return the rules that reject calls whose model HAProxy cannot see, unless some node can answer them.

    Args:
        sequence: HAProxy condition for a call that belongs to a sequence. It is always rejected, because the nodes
            that serve the sequence are unknown
        served: whether there is a node that serves all models
    """
    also = f" {sequence}" if served else ""
    return [
        f"    {_refusal(_UNIMPLEMENTED, _PACKED_REFUSAL, 'hdr grpc-accept-encoding identity ')} if {_IS_PACKED}{also}",
        f"    {_refusal(_INVALID, _UNNAMED_REFUSAL)} if {_IS_UNNAMED}{also}",
    ]


def use_packed(backend: str) -> list[str]:
    """Return the rules that send calls to the nodes that serve all models if HAProxy cannot see the model."""
    return [f"    use_backend {backend} if {one}" for one in (_IS_PACKED, _IS_UNNAMED)]


def _wait_in_stream() -> list[str]:
    """Return the rules that wait for a stream's complete first message. The next may not come for a long time."""
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
