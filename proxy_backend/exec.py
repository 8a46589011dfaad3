"""One call to another model through the stub: its tensors, its request, its answers and their errors.

The stub (Triton 2.51) passes on the text of an error but never its code. So the code is derived from the text
here, if Triton wrote it. An iterator of a decoupled call never ends after an error (seen in 2.51), so an error
counts as its end.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton._protocol import datatypes
from pytriton._protocol.calls.call_connection import CallConnection
from pytriton._protocol.calls.call_messages import Answer, Call
from pytriton._protocol.calls.call_slots import Slot, Slots
from pytriton._protocol.errors import sendable
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane_messages import TensorRef
from pytriton._protocol.parameters import CHAIN_PARAMETER, HANDLE_PARAMETER
from pytriton.proxy_backend import stub, translate
from pytriton.proxy_backend.chains import Handle, refused, sealed
from pytriton.proxy_backend.translate import Regions

Release = Callable[[], None]


class FlightState(Protocol):
    """The part of a call in flight that the executor uses."""

    dropped: bool
    handle: Handle

    def wait_for_room(self) -> None:
        """Wait until another answer may be sent."""


class Executor:
    """Makes the calls received on one connection. Thread-safe."""

    def __init__(
        self,
        translator: translate.Translator,
        control_endpoint: str,
        connection: CallConnection,
        slots: Slots,
    ) -> None:
        self._translator = translator
        self._endpoint = control_endpoint
        self._connection = connection
        self._slots = slots
        self._placing = threading.Lock()
        self._regions = Regions()
        self._announced: dict[str, int] = {}

    def answers(self, call: Call, state: FlightState) -> Iterator[tuple[Answer, Release]]:
        """Make a call; yield its answers, each with a function to call when the worker has read it.

        Raises:
            LaneError, ArenaError: the worker's descriptors are wrong, or there is no memory.
        """
        refusal = refused(call, self._endpoint)
        if refusal is not None:
            yield Answer(call.id, [], True, refusal, "UNAVAILABLE"), _nothing
            return
        request = self._request(call, state.handle.name() if call.stream else None)
        if not call.stream:
            yield self._answer(call, request.exec(), final=True)
            return
        responses, ended = request.exec(decoupled=True), False
        for response in responses:
            failed = response.has_error()
            if not failed and not response.output_tensors():
                continue  # the stub's end marker; ours is below
            state.wait_for_room()
            if state.dropped:
                if hasattr(responses, "cancel"):  # later than 2.51
                    responses.cancel()
                break
            yield self._answer(call, response, final=failed)
            if failed:
                return
        else:
            ended = True
        failure = state.handle.failure()
        text, code = failure if failure is not None else (None, "")
        try:
            yield Answer(call.id, [], True, text, code), _nothing
        finally:
            if ended:
                stub.let_go_last(responses)

    def _request(self, call: Call, handle: str | None) -> Any:
        parameters = json.loads(call.parameters)
        if handle is not None:
            parameters[HANDLE_PARAMETER] = handle
        parameters[CHAIN_PARAMETER] = sealed(call.chain)
        return pb_utils.InferenceRequest(
            model_name=call.model,
            model_version=call.version,
            requested_output_names=call.outputs,
            inputs=[self._translator.tensor(ref, self._connection) for ref in call.inputs],
            request_id=call.request_id,
            correlation_id=call.correlation_id,
            flags=call.flags,
            timeout=call.timeout_us,
            parameters=parameters,
        )

    def _answer(self, call: Call, response: Any, *, final: bool) -> tuple[Answer, Release]:
        if response.has_error():
            text, code = explained(call, response.error())
            return Answer(call.id, [], True, text, code), _nothing
        kept = _Kept(self._slots, response)
        try:
            outputs = [self._output(tensor, kept) for tensor in response.output_tensors()]
        except BaseException:
            kept.release()
            raise
        # Responses have parameters only after Triton 2.51.
        parameters = response.parameters() if hasattr(response, "parameters") else ""
        return Answer(call.id, outputs, final, parameters=parameters), kept.release

    def _output(self, tensor: Any, kept: _Kept) -> TensorRef:
        name = tensor.name()
        place = stub.place_of(tensor)
        if place is None:
            slot = kept.slot()
            return slot.placed(self._translator.serialized(name, tensor, slot))
        datatype, address = place
        shape = list(tensor.shape())
        nbytes = math.prod(shape) * datatypes.NUMERIC[datatype].itemsize
        if nbytes == 0:
            return TensorRef(name, datatype, shape, 0, 0, 0)
        with self._placing:
            mapping = self._regions.find(address, nbytes)
            if mapping is not None:
                memory = self._announced.get(mapping.path)
                if memory is None:
                    fd = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
                    memory = self._announced[mapping.path] = self._connection.announce(fd)
                offset = address - mapping.start + mapping.offset
                kept.tensors.append(tensor)
                return TensorRef(name, datatype, shape, memory, offset, nbytes)
        slot = kept.slot()
        dtype = datatypes.NUMERIC[datatype]
        return slot.placed(tensors.write(slot, name, datatype, np.from_dlpack(tensor), dtype))


class _Kept:
    """Keeps the memory of one answer alive."""

    def __init__(self, slots: Slots, response: Any) -> None:
        self.tensors = [response]
        self._slots = slots
        self._slot: Slot | None = None

    def slot(self) -> Slot:
        """Return our own memory for outputs that are not in Triton's."""
        if self._slot is None:
            self._slot = self._slots.take()
        return self._slot

    def release(self) -> None:
        """Release the memory: the worker has read the answer."""
        self.tensors.clear()
        if self._slot is not None:
            self._slots.give_back(self._slot)
            self._slot = None


def _nothing() -> None:
    pass


def _says_unserved(text: str) -> bool:
    """Return whether an error means an unknown or unready model: 2.51 has one text for both, later cores have two.

    The stub replaces all codes with INTERNAL, so only the text distinguishes them.
    """
    plain = text.rstrip(".'").lower()
    unknown = "unknown model" in plain or "failed to find" in plain
    return unknown or plain.endswith(("is not ready", "is not found", "no available versions"))


def explained(call: Call, error: Any) -> tuple[str, str]:
    """Return the text of a response's error and the name of its code."""
    text = error.message().strip()
    code = translate.code_name(error)
    prefix = f"Model {call.model} - Error when running inference: "
    if not text.startswith(prefix):
        return sendable(text), code  # the model's own error
    text = text[len(prefix) :].strip()
    if text.count("'") % 2:  # the stub leaves an unmatched quotation mark
        text = text.rstrip("'")
    if _says_unserved(text):
        version = f" version {call.version}" if call.version >= 0 else ""
        return f"model {call.model}{version} is not served here, or is not ready", "NOT_FOUND"
    if "decoupled transaction policy" in text:
        return (
            f"model {call.model} is decoupled: it may answer many times. Call it with pytriton.stream(...)"
        ), "UNSUPPORTED"
    if "maximum queue size" in text.lower():
        return sendable(text), "UNAVAILABLE"
    return sendable(text), "INVALID_ARG" if code == "INTERNAL" else code
