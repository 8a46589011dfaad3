"""A provisional registration on several nodes: confirmed on all, or rolled back on all.

Each node rolls it back by itself if its lease is not renewed for a while (`LEASE_S`). So the registering process or
the network may fail at any moment: no node keeps a partial change for longer than that.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Optional

import msgspec

from pytriton._protocol import messages
from pytriton.daemon import DaemonClient
from pytriton.exceptions import FleetError, ModelNotFoundError, PyTritonError
from pytriton.fleet.broadcast import MAX_AT_ONCE, ask_each

#: Lease duration: a node rolls back when it is not renewed for so long.
LEASE_S = 30.0
_RENEW_S = 5.0


class FleetLease:
    """The lease of one registration. Renewed on all nodes inside of the `with` block.

    Args:
        clients: the nodes
        model: name of the model
        share: share of the requests that balancers send to all nodes that have it together; 0: no limit

    Attributes:
        id: ID of the lease on the nodes
        lost: nodes that had it, and report that they lost it
    """

    def __init__(self, clients: Mapping[str, DaemonClient], model: str, share: float = 0.0) -> None:
        self.id = secrets.token_hex(16)
        self.lost: dict[str, Exception] = {}
        self._clients = clients
        self._model = model
        self._share = share
        self._made: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="fleet-lease")

    def __enter__(self) -> FleetLease:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def as_provisional(self, message: messages.Register) -> messages.Register:
        """Return a registration with this lease."""
        lease = messages.Lease(self.id, LEASE_S, self._share)
        spec = msgspec.structs.replace(message.spec, lease=lease)
        return msgspec.structs.replace(message, spec=spec)

    def made(self, node: str) -> None:
        """Record that a node has it: from now on, losing it is an error."""
        self._made.add(node)

    def lift_share(self) -> None:
        """Make balancers send as many requests to nodes that have it as to others."""
        self._share = 0.0
        ask_each({one: self._clients[one] for one in self._made}, self._renew_on)

    def roll_back(self, node: str, client: DaemonClient) -> str:
        """Roll it back on one node; return the outcome, or None if the node did not have it."""
        self._made.discard(node)
        try:
            client.end_lease(self._model, self.id, keep=False)
        except ModelNotFoundError:
            return ""
        return "it was withdrawn"

    def check(self) -> None:
        """Check that all nodes have it right now: one may have died since it registered.

        Raises:
            FleetError: a node lacks it
        """
        answers = ask_each(
            self._clients, lambda _, client: client.renew_lease(self._model, self.id, self._share)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} was not registered: all nodes had it, not all have it any more. A node that "
            f"does not answer takes it back within {LEASE_S:g} s of its return.",
        )

    def keep(self) -> None:
        """Confirm it on all nodes.

        Raises:
            FleetError: a node does not confirm it; names them
        """
        answers = ask_each(
            self._clients, lambda _, client: client.end_lease(self._model, self.id, keep=True)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} is confirmed on {', '.join(answers.done) or 'no node'}. A node that was "
            f"not reached rolls it back within {LEASE_S:g} s; `sync` brings it there.",
        )

    def _require_all(self, failed: dict[str, Exception], text: str) -> None:
        if failed:
            texts = "\n".join(f"{node}: {error}" for node, error in failed.items())
            raise FleetError(f"{text}\n{texts}", model_name=self._model, failures=failed)

    def _renew(self) -> None:
        # A node that is slow to answer must not delay the others.
        running: dict[str, Optional[Future[None]]] = dict.fromkeys(self._clients)
        pool = ThreadPoolExecutor(max(1, min(len(self._clients), MAX_AT_ONCE)))
        while not self._ended.wait(_RENEW_S):
            for node in list(self._made):
                former = running[node]
                if former is None or former.done():
                    running[node] = pool.submit(self._renew_on, node, self._clients[node])
        pool.shutdown(wait=False)

    def _renew_on(self, node: str, client: DaemonClient) -> None:
        try:
            client.renew_lease(self._model, self.id, self._share)
        except ModelNotFoundError as error:
            if node in self._made:
                self.lost[node] = error
        except PyTritonError:  # it is down, or slow; the confirmation will show the outcome
            return
