"""A batch of a decoupled model in flight: its response senders, its losses, and whether it may be retried."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton._protocol.errors import with_id
from pytriton._protocol.lanes.lane import LaneError
from pytriton._protocol.lanes.lane_messages import Batch, BatchTrace
from pytriton._protocol.lanes.request_records import id_at
from pytriton._protocol.messages import Verdict
from pytriton.proxy_backend import translate
from pytriton.proxy_backend.chains import has_closed, write_failure

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Flight:
    """A batch in flight: the senders of its requests, and which of their clients have disconnected."""

    def __init__(self, requests: Sequence[Any]) -> None:
        #: None: its last answer has been sent.
        self.senders: list[Any] = [request.get_response_sender() for request in requests]
        self.trace: BatchTrace | None = None
        self.sent: Batch | None = None  #: as sent to a worker
        self.names: list[str] = []  #: its requests' ids, for an error before it is sent
        self.taken_ns = time.monotonic_ns()
        self.cancelled: set[int] = set()
        self.begun = False
        self.returned = False
        self.reschedule: list[int] = []
        self.overdue_at: float | None = None
        self.overdue_since: float | None = None
        self.losses = 0
        #: How many earlier requests of its batch, retried individually, lost a worker in a row.
        self.in_row = 0
        self.whole = False  #: those after it are not retried
        self.answered = False  #: a client of it has received something
        self.failure: str | None = None  #: why it is not retried when its lane ends
        #: The handles of requests from other models; each indicates whether its caller still waits.
        self.waiting: list[str] = []

    def alone(self, index: int, in_row: int) -> Flight:
        """Return one request as a batch of its own, after a worker was lost with all of them."""
        one = Flight(())
        one.senders = [self.senders[index]]
        one.losses = 1
        one.taken_ns = self.taken_ns
        one.in_row = in_row
        return one

    def facts(self) -> dict[str, Any]:
        """Return the facts for the dispatcher's verdict about the batch."""
        return {
            "losses": self.losses,
            "requests": len(self.senders),
            "in_row": self.in_row + 1 if self.losses else 0,
            "request_id": self._name(0) if len(self.senders) == 1 else "",
        }

    def is_final(self, until_returned: bool) -> bool:
        """Return whether the batch cannot be retried: Triton has its requests back, or an answer has been sent.

        `until_returned`: Triton gets the requests back at `BatchReturned`, not when the batch begins.
        """
        waits = until_returned and not self.returned and not self.answered
        return self.begun and not waits

    def has_lost_worker(self, judge: Callable[..., Verdict], broken: str | None) -> None:
        """Ask `judge` whether to retry the batch. `broken`: how the worker broke the protocol with it."""
        self.failure = self.failure or broken
        if self.failure is not None:
            return
        first = self.losses == 0
        self.losses += 1
        verdict = judge(**{**self.facts(), **({"in_row": 0} if first else {})})
        if verdict.action == "fail":
            self.failure = verdict.text
            self.whole = verdict.whole

    def has_begun(self, limit_s: float | None) -> None:
        """Note that the worker has begun the batch, and start its time limit."""
        self.begun = True
        self.overdue_at = None if limit_s is None else time.monotonic() + limit_s
        self.overdue_since = None

    def has_returned(self, reschedule: list[int]) -> None:
        """Note that the model's `execute` has returned, and that Triton queues these requests again.

        Raises:
            LaneError: there are no such requests.
        """
        if any(not 0 <= index < len(self.senders) for index in reschedule):
            raise LaneError(f"the worker asked to reschedule requests {reschedule!r:.100}")
        for index in reschedule:
            self.senders[index] = None
        self.reschedule = reschedule
        self.returned = True

    def begin_anew(self) -> None:
        """Reset the batch for another try, as if it had never been sent."""
        self.begun = False
        self.overdue_at = None
        self.cancelled.clear()

    def refuse(self, texts: Sequence[str | None]) -> None:
        """Answer each request that has a text with that error, and remove it from the batch."""
        for sender, text in zip(self.senders, texts):
            if text is not None:
                sender.send(translate.refused(text), flags=_FINAL)
        self.senders = [one for one, text in zip(self.senders, texts) if text is None]

    def gone(self, index: int) -> bool:
        """Return whether the client of a request, or the model that made it, has disconnected."""
        waiting = self.waiting[index] if self.waiting else ""
        return self.senders[index].is_cancelled() or has_closed(waiting)

    def end(
        self,
        make_response: Callable[[str], Any] | None = None,
        text: str = "",
        *,
        named: bool = True,
    ) -> None:
        """End the stream of each request, with an error if there is one; `named`: it ends with the request's id."""
        for index, sender in enumerate(self.senders):
            if sender is None:
                continue
            error_text = with_id(text, self._name(index)) if named else text
            response = None if make_response is None else make_response(error_text)
            if response is None or self._write_failure(index, response.error()):
                sender.send(flags=_FINAL)
            else:
                sender.send(response, flags=_FINAL)
            self.senders[index] = None

    def _name(self, index: int) -> str:
        if self.sent is not None:
            return id_at(self.sent, index)
        return self.names[index] if index < len(self.names) else ""

    def _write_failure(self, index: int, error: Any) -> bool:
        """Write an error to the handle of the model that made the request; return False if there is none."""
        waiting = self.waiting[index] if self.waiting else ""
        return write_failure(waiting, error.message(), translate.code_name(error))

    def send(self, index: int, response: Any, *, final: bool) -> None:
        """Pass an answer on; None is the end of the stream without an answer."""
        sender = self.senders[index]
        if sender is None:
            raise LaneError("the worker answered a request that it had ended")
        flags = _FINAL if final else 0
        if response is None or (
            final and response.has_error() and self._write_failure(index, response.error())
        ):
            sender.send(flags=flags)
        else:
            sender.send(response, flags=flags)
        if final:
            self.senders[index] = None
