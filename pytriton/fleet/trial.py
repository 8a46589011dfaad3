"""A registration that is on trial on several nodes until all of them have it: kept on all, or taken back on all.

Each node takes it back by itself when it hears nothing for a while (`LEASE_S`). So whoever registers may die at any
moment, and so may the network between: no node is left with a half of the change for longer than that.
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
from pytriton.fleet.broadcast import MOST_AT_ONCE, ask_each

#: A node waits so long for a sign of life of its registrant.
LEASE_S = 30.0
_RENEW_S = 5.0


class FleetTrial:
    """One registration's trial. Inside of the `with` block, nodes hear that it goes on.

    Args:
        clients: the nodes
        model: its name
        share: of the requests, what balancers are to send to all nodes that have it together; 0: no less than to others

    Attributes:
        id: by which nodes know it
        lost: nodes that had it, and say that they have it no more
    """

    def __init__(self, clients: Mapping[str, DaemonClient], model: str, share: float = 0.0) -> None:
        self.id = secrets.token_hex(16)
        self.lost: dict[str, Exception] = {}
        self._clients = clients
        self._model = model
        self._share = share
        self._made: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="fleet-trial")

    def __enter__(self) -> FleetTrial:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def on_trial(self, message: messages.Register) -> messages.Register:
        """Return a registration as nodes get it."""
        trial = messages.Trial(self.id, LEASE_S, self._share)
        spec = msgspec.structs.replace(message.spec, trial=trial)
        return msgspec.structs.replace(message, spec=spec)

    def made(self, node: str) -> None:
        """Take note that a node has it: from now on it has to go on having it."""
        self._made.add(node)

    def lift_share(self) -> None:
        """Have balancers send to nodes that have it as many requests as to others."""
        self._share = 0.0
        ask_each({one: self._clients[one] for one in self._made}, self._renew_on)

    def take_back(self, node: str, client: DaemonClient) -> str:
        """Take it back on one node; return what became of it there, nothing where it was not."""
        self._made.discard(node)
        try:
            client.end_trial(self._model, self.id, keep=False)
        except ModelNotFoundError:
            return ""
        return "it was withdrawn"

    def check(self) -> None:
        """See that all nodes have it at this moment: one may have died since it said so.

        Raises:
            FleetError: not all do
        """
        answers = ask_each(
            self._clients, lambda _, client: client.renew_trial(self._model, self.id, self._share)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} was not registered: all nodes had it, not all have it any more. A node that "
            f"does not answer takes it back within {LEASE_S:g} s of its return.",
        )

    def keep(self) -> None:
        """Have it stay on all nodes.

        Raises:
            FleetError: not all say that it does; names them
        """
        answers = ask_each(
            self._clients, lambda _, client: client.end_trial(self._model, self.id, keep=True)
        )
        self._require_all(
            answers.failed,
            f"Model {self._model!r} is there to stay on {', '.join(answers.done) or 'no node'}. A node that was "
            f"not told so takes it back within {LEASE_S:g} s; `sync` brings it there.",
        )

    def _require_all(self, failed: dict[str, Exception], text: str) -> None:
        if failed:
            texts = "\n".join(f"{node}: {error}" for node, error in failed.items())
            raise FleetError(f"{text}\n{texts}", model_name=self._model, failures=failed)

    def _renew(self) -> None:
        # A node that is slow to answer must not cost the others their time.
        running: dict[str, Optional[Future[None]]] = dict.fromkeys(self._clients)
        pool = ThreadPoolExecutor(max(1, min(len(self._clients), MOST_AT_ONCE)))
        while not self._ended.wait(_RENEW_S):
            for node in list(self._made):
                former = running[node]
                if former is None or former.done():
                    running[node] = pool.submit(self._renew_on, node, self._clients[node])
        pool.shutdown(wait=False)

    def _renew_on(self, node: str, client: DaemonClient) -> None:
        try:
            client.renew_trial(self._model, self.id, self._share)
        except ModelNotFoundError as error:
            if node in self._made:
                self.lost[node] = error
        except PyTritonError:  # it is down, or slow: what becomes of it is seen when it is to stay
            return
