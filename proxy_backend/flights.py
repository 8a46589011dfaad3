"""A batch of a decoupled model under way: how each of its requests is answered, and whether it may be tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton.ipc.lanes.lane import LaneError
from pytriton.ipc.lanes.lane_messages import BatchTrace
from pytriton.ipc.messages import Verdict
from pytriton.proxy_backend import translate
from pytriton.proxy_backend.chains import has_closed, tell_failure

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class Flight:
    """A batch under way: the senders of its requests, and which of their clients have gone."""

    def __init__(self, requests: Sequence[Any]) -> None:
        #: None: its last answer has been sent.
        self.senders: list[Any] = [request.get_response_sender() for request in requests]
        self.trace: BatchTrace | None = None
        self.taken_ns = time.monotonic_ns()
        self.cancelled: set[int] = set()
        self.begun = False
        self.returned = False
        self.reschedule: list[int] = []
        self.overdue_at: float | None = None
        self.overdue_since: float | None = None
        self.losses = 0
        #: Requests of its batch before it, tried each by itself, that lost a worker one after the other.
        self.in_row = 0
        self.whole = False  #: those after it are not tried
        self.answered = False  #: something has been said to a client of it
        self.failure: str | None = None  #: why it is not tried again when its lane ends
        #: Of requests that other models have made: by what is seen whether they still wait.
        self.waiting: list[str] = []

    def alone(self, index: int, in_row: int) -> Flight:
        """Return one of its requests as a batch of its own: a worker was lost with all."""
        one = Flight(())
        one.senders = [self.senders[index]]
        one.losses = 1
        one.taken_ns = self.taken_ns
        one.in_row = in_row
        return one

    def facts(self) -> dict[str, Any]:
        """Return what the dispatcher is told when it is asked what becomes of it."""
        return {
            "losses": self.losses,
            "requests": len(self.senders),
            "in_row": self.in_row + 1 if self.losses else 0,
        }

    def is_final(self, until_returned: bool) -> bool:
        """Whether it cannot be tried again: Triton has its requests back, or a part of its answers has been sent.

        `until_returned`: Triton gets them back not when it begins, but at `BatchReturned`.
        """
        waits = until_returned and not self.returned and not self.answered
        return self.begun and not waits

    def has_lost_worker(self, judge: Callable[..., Verdict], broken: str | None) -> None:
        """Find out whether it is tried again: `judge` says so. `broken`: how the worker broke the protocol with it."""
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
        """The worker has begun it, and has so long for it."""
        self.begun = True
        self.overdue_at = None if limit_s is None else time.monotonic() + limit_s
        self.overdue_since = None

    def has_returned(self, reschedule: list[int]) -> None:
        """The model's `execute` has returned; Triton queues these requests again.

        Raises:
            LaneError: there are no such requests.
        """
        if any(not 0 <= index < len(self.senders) for index in reschedule):
            raise LaneError(f"the worker has requests {reschedule!r:.100} queued again")
        for index in reschedule:
            self.senders[index] = None
        self.reschedule = reschedule
        self.returned = True

    def begin_anew(self) -> None:
        """It is tried again, as if it had never been sent."""
        self.begun = False
        self.overdue_at = None
        self.cancelled.clear()

    def refuse(self, texts: Sequence[str | None]) -> None:
        """Answer the requests that have a text with it, as an error, and take them out."""
        for sender, text in zip(self.senders, texts):
            if text is not None:
                sender.send(translate.refused(text), flags=_FINAL)
        self.senders = [one for one, text in zip(self.senders, texts) if text is None]

    def gone(self, index: int) -> bool:
        """Whether nobody waits for the answers to a request any longer."""
        waiting = self.waiting[index] if self.waiting else ""
        return self.senders[index].is_cancelled() or has_closed(waiting)

    def end(self, make_response: Any = None) -> None:
        """Say that nothing more comes, with a last response to each if there is one."""
        for index, sender in enumerate(self.senders):
            if sender is None:
                continue
            response = None if make_response is None else make_response()
            if response is None or self._tell(index, response.error()):
                sender.send(flags=_FINAL)
            else:
                sender.send(response, flags=_FINAL)
            self.senders[index] = None

    def _tell(self, index: int, error: Any) -> bool:
        """Give an error to the model that has made the request, by its handle, if it has one."""
        waiting = self.waiting[index] if self.waiting else ""
        return tell_failure(waiting, error.message(), translate.code_name(error))

    def send(self, index: int, response: Any, *, final: bool) -> None:
        """Pass an answer on; None: there is none, just the end of them."""
        sender = self.senders[index]
        if sender is None:
            raise LaneError("the worker answered a request that it had ended")
        flags = _FINAL if final else 0
        if response is None or (
            final and response.has_error() and self._tell(index, response.error())
        ):
            sender.send(flags=flags)
        else:
            sender.send(response, flags=flags)
        if final:
            self.senders[index] = None
