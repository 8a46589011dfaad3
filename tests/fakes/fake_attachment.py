"""A fake attachment: the test chooses its lanes and retry decisions."""

from __future__ import annotations

import copy
import socket
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton._protocol.lanes.lane import Lane


class FakeAttachment:
    """Replaces `pytriton.proxy_backend.python_proxy.attachment.Attachment`; `workers` has the workers' ends of its lanes.

    Attributes:
        verdicts: the successive answers about lost workers and overdue batches
        asked: the arguments of those questions
        no_worker: why there are no more workers; None: there is always another
    """

    def __init__(self, *verdicts: messages.Verdict) -> None:
        self.verdicts = list(verdicts)
        self.asked: list[dict[str, Any]] = []
        self.workers: list[Lane] = []
        self.no_worker: str | None = None
        self.lane: Lane | None = None
        self.avoid: list[str] = []
        self.execution_timeout_s: float | None = None
        self.tracing = False
        self.worker = ""

    def attach(self) -> Lane:
        if self.lane is None:
            if self.no_worker is not None:
                raise RemoteFailure(ErrorKind.UNAVAILABLE, self.no_worker)
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.lane = Lane(ends[0], peer_trusted=False)
            self.workers.append(Lane(ends[1], peer_trusted=True))
            self.worker = f"w{len(self.workers)}"
        return self.lane

    def attach_early(self) -> Lane | None:
        return self.attach()

    def detach_lane(self) -> FakeAttachment:
        parted = copy.copy(self)
        self.lane = None
        return parted

    def drop(self) -> None:
        if self.lane is not None:
            self.lane.close()
            self.lane = None

    def judge_loss(self, **loss: Any) -> messages.Verdict:
        self.asked.append(loss)
        return self._verdict()

    def judge_overdue(self, **about: Any) -> messages.Verdict:
        self.asked.append(about)
        return self._verdict()

    def _verdict(self) -> messages.Verdict:
        return self.verdicts.pop(0) if self.verdicts else messages.Verdict("fail", "it is lost")
