"""Clients that send requests continuously over HTTP and gRPC, and check every response."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from chaos.ledger import RequestLedger
from chaos.models import ANSWER, SALTS, right_answer

#: An answer or an error has to come within this time.
PATIENCE_S = 40.0
#: Between two requests of one client: the load shall leave the machine something to recover with.
_PAUSE_S = 0.004
#: Pause after an error, so that a client does not retry a closed port at once.
_PAUSE_AFTER_ERROR_S = 0.05


class AskError(Exception):
    """The request got an error."""


class NoAnswer(Exception):
    """Nothing was received in time."""


class Asker(ABC):
    """One connection."""

    @abstractmethod
    def ask(self, model: str, number: int, what: int = ANSWER) -> int:
        """Return the model's response.

        Raises:
            AskError: the response is an error
            NoAnswer: there is none
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class HttpAsker(Asker):
    """KServe's JSON over a persistent connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)

    def ask(self, model: str, number: int, what: int = ANSWER) -> int:
        tensor = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [number, what]}
        try:
            self._connection.request(
                "POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]})
            )
            response = self._connection.getresponse()
            body = response.read()
        except TimeoutError as error:
            self._connection.close()
            raise NoAnswer(f"HTTP: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise AskError(f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            raise AskError(body.decode(errors="replace"))
        return int(json.loads(body)["outputs"][0]["data"][0])

    def close(self) -> None:
        self._connection.close()


class GrpcAsker(Asker):
    """tritonclient, with a new channel after an error, since gRPC's own reconnecting is slow."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = tritonclient.grpc.InferenceServerClient(address)

    def ask(self, model: str, number: int, what: int = ANSWER) -> int:
        tensor = tritonclient.grpc.InferInput("x", [1, 2], "INT64")
        tensor.set_data_from_numpy(np.array([[number, what]], np.int64))
        try:
            result = self._client.infer(model, [tensor], client_timeout=PATIENCE_S)
        except InferenceServerException as error:
            self._client.close()
            self._client = tritonclient.grpc.InferenceServerClient(self._address)
            if "Deadline Exceeded" in str(error):
                raise NoAnswer(f"gRPC: {error}") from error
            raise AskError(str(error)) from error
        return int(result.as_numpy("y")[0, 0])

    def close(self) -> None:
        self._client.close()


def ask_once(ledger: RequestLedger, asker: Asker, model: str, number: int) -> bool:
    """Send a request that has to succeed, and record it; return whether the response was correct."""
    try:
        answer = asker.ask(model, number)
    except AskError as error:
        ledger.failed(str(error))
        return False
    except NoAnswer as error:
        ledger.lost(f"{model}: {error}")
        return False
    if answer != right_answer(model, number):
        ledger.wrong(f"{model}: {answer} to {number}")
        return False
    ledger.right(model)
    return True


def ask_guilty(ledger: RequestLedger, asker: Asker, model: str, what: int) -> None:
    """Send a request that has to fail with a reason, and record it."""
    try:
        answer = asker.ask(model, 1, what)
    except AskError as error:
        ledger.guilty(str(error))
    except NoAnswer as error:
        ledger.lost(f"{model}: {error}")
    else:
        ledger.wrong(f"{model}: {answer} to a request that has to fail")


class Load:
    """Threads that call all models in turn until they are stopped, half of them over HTTP, half over gRPC."""

    def __init__(
        self,
        http_address: str,
        grpc_address: str,
        ledger: RequestLedger,
        clients: int,
        models: Iterable[str] = SALTS,
    ) -> None:
        self._ledger = ledger
        self._models = models
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        #: How many requests of each client have ended.
        self.ended = [0] * clients
        self._threads = [
            threading.Thread(
                target=self._ask_on,
                args=(HttpAsker(http_address) if i % 2 else GrpcAsker(grpc_address), i),
            )
            for i in range(clients)
        ]

    def start(self) -> None:
        """Start the clients."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the clients, and wait for their last responses."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, asker: Asker, seed: int) -> None:
        models = list(self._models)
        random.Random(seed).shuffle(models)
        for model in itertools.cycle(models):
            right = ask_once(self._ledger, asker, model, next(self._numbers))
            pause_s = _PAUSE_S if right else _PAUSE_AFTER_ERROR_S
            self.ended[seed] += 1
            if self._stop.wait(pause_s):
                break
        asker.close()
