"""Single requests, as the access log and the answers to clients have them; profiles of workers."""

from __future__ import annotations

from typing import Optional

import msgspec

from pytriton._protocol.messages.base import Message


class RequestEntry(msgspec.Struct, frozen=True):
    """One request that a worker has answered.

    Attributes:
        time: when, seconds since the epoch.
        id: its client's, that of its trace, or one of the daemon's.
        status: "ok", or why it failed: callable, input, result, timeout, unrecoverable.
        queue_ns: from when tritonserver handed its batch over until the call began; None: unknown.
        compute_ns: the call that it was in, with reading inputs and writing outputs; of a stream, to its end.
        batch_requests, batch_rows: of that call.
        bytes_out: None: they were not counted.
        error: the type of the exception that it failed by, if one did it: its name, and nothing of its text.
    """

    time: float
    id: str
    model: str
    version: int
    instance: int
    status: str
    queue_ns: Optional[int]
    compute_ns: int
    batch_requests: int
    batch_rows: int
    bytes_in: int
    bytes_out: Optional[int]
    error: str = ""


class Requests(Message, frozen=True):
    """Answer to GetRequests.

    Attributes:
        access_log: whether every request is written to `file`, a JSON object a line.
        logged, left_out: requests that are there since the daemon's start, and that there was no room or time for.
        slowest: of the last hour, as far as they were sampled, the slowest first.
        failed: the last ones that failed, the newest first.
    """

    model: str
    access_log: bool
    file: str
    logged: int = 0
    left_out: int = 0
    slowest: list[RequestEntry] = msgspec.field(default_factory=list)
    failed: list[RequestEntry] = msgspec.field(default_factory=list)


class Profiled(Message, frozen=True):
    """Answer to ProfileWorker: `stacks` as py-spy writes them ("raw"), the commonest where there are too many."""

    instance: int
    worker: str
    pid: int
    seconds: float
    rate: int
    stacks: str
    left_out: int = 0
