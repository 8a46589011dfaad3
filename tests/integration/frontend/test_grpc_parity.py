"""The native frontend and NVIDIA's respond alike over gRPC, except for the decisions in grpc/decisions.py."""

from __future__ import annotations

import grpc
import pytest
from support.frontend.frontend_pair import Frontend
from support.frontend.grpc.corpus import corpus
from support.frontend.grpc.decisions import GRPC_DECISIONS, GrpcReply
from support.frontend.grpc.requests import Call
from tritonclient.grpc import service_pb2_grpc

CORPUS = list(corpus())


def reply(frontend: Frontend, call: Call) -> GrpcReply:
    """Send a call to one of the two frontends."""
    messages = []
    with grpc.insecure_channel(frontend.grpc) as channel:
        method = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), call.method)
        try:
            if call.method == "ModelStreamInfer":
                messages.extend(method(iter(call.requests), timeout=60, metadata=call.metadata))
            else:
                messages.append(method(call.requests[0], timeout=60, metadata=call.metadata))
        except grpc.RpcError as error:
            return GrpcReply(error.code().name, error.details(), messages)
    return GrpcReply("OK", "", messages)


@pytest.mark.parametrize("call", CORPUS, ids=[call.name for call in CORPUS])
def test_both_frontends_respond_alike(frontends: tuple[Frontend, Frontend], call: Call) -> None:
    nvidia, native = reply(frontends[0], call), reply(frontends[1], call)
    if nvidia == native:
        return
    decision = next((one for one in GRPC_DECISIONS if one.applies(call.name)), None)
    assert decision, f"NVIDIA's: {nvidia}\nnative: {native}"
    assert decision.holds(nvidia, native), f"NVIDIA's: {nvidia}\nnative: {native}\n{decision}"


@pytest.mark.parametrize("decision", GRPC_DECISIONS, ids=[one.names for one in GRPC_DECISIONS])
def test_every_decision_applies_to_a_call(decision: object) -> None:
    assert any(
        one is decision and one.applies(call.name) for one in GRPC_DECISIONS for call in CORPUS
    )
