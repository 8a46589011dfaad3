"""The outcome of every request, by the fault in progress when it ended."""

from __future__ import annotations

import collections
import re
import threading
import time
from dataclasses import dataclass, field

#: Errors that tell a client what happened: connections that broke, models and servers that were away,
#: and what the daemon itself says of a batch.
_CLEAR = re.compile(
    r"Connection refused|Connection reset|Connection aborted|RemoteDisconnected|BadStatusLine|IncompleteRead"
    r"|Broken pipe|failed to connect|Failed to connect|Socket closed|recvmsg|CANCELLED|GOAWAY|Connection closed"
    r"|is not healthy|unknown model|not ready|is being stopped|is in a crash loop|Server is stopping"
    r"|execution_timeout_s|was killed by signal|exited with code|MemoryError|cannot allocate \d+ bytes"
    r"|shared memory|No space left|cannot be passed on|cannot send the lane's memory"
    # HAProxy's: no node, or one that broke off.
    r"|no node can serve this request|invalid or incomplete response|Received http2 header with status: 50[234]|RST_STREAM"
)


@dataclass
class Account:
    """What happened during one kind of fault. `gap_s` is the longest time in which a model answered nobody.

    `recovery_s` is the longest time from the fault until everything that it had broken was back.
    `failed` are requests that should have been answered, `guilty` those that had to fail.
    """

    injected: int = 0
    right: int = 0
    failed: int = 0
    guilty: int = 0
    unclear: int = 0
    wrong: int = 0
    lost: int = 0
    gap_s: float = 0.0
    recovery_s: float = 0.0
    texts: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def sent(self) -> int:
        return self.right + self.guilty + self.failed + self.unclear + self.wrong + self.lost


class RequestLedger:
    """Accounts by fault; for any number of threads."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._lock = threading.Lock()
        self._fault = "none"
        self._begun = time.monotonic()
        self._last_right: dict[str, float] = {}

    def begin(self, fault: str) -> None:
        """Attribute all following outcomes to this fault."""
        with self._lock:
            self._fault = fault
            self._begun = time.monotonic()
            self._account().injected += 1

    def recovered(self) -> None:
        """Record that everything is back."""
        with self._lock:
            account = self._account()
            account.recovery_s = max(account.recovery_s, time.monotonic() - self._begun)

    def right(self, model: str) -> None:
        """Record a correct response."""
        now = time.monotonic()
        with self._lock:
            account = self._account()
            account.right += 1
            account.gap_s = max(account.gap_s, now - self._last_right.get(model, now))
            self._last_right[model] = now

    def wrong(self, text: str) -> None:
        """Record a wrong response."""
        self._count("wrong", text)

    def lost(self, text: str) -> None:
        """Record a request that got no response or error in time."""
        self._count("lost", text)

    def failed(self, text: str) -> None:
        """Record an error."""
        self._count("failed" if _CLEAR.search(text) else "unclear", _shape(text))

    def guilty(self, text: str) -> None:
        """Record the error of a request that has to fail."""
        self._count("guilty" if _CLEAR.search(text) else "unclear", f"guilty: {_shape(text)}")

    def answered(self) -> int:
        """Return the number of correct responses so far."""
        with self._lock:
            return sum(account.right for account in self.accounts.values())

    def _count(self, outcome: str, text: str) -> None:
        with self._lock:
            account = self._account()
            setattr(account, outcome, getattr(account, outcome) + 1)
            account.texts[text] += 1

    def _account(self) -> Account:
        return self.accounts.setdefault(self._fault, Account())


def _shape(text: str) -> str:
    """Return the text shortened and without its numbers, so that similar errors are counted together."""
    return re.sub(r"\d+", "#", text)[:160]
