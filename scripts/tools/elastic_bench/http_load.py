"""Requests over HTTP, one or as a load has them come, and how long they took."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib import request
from urllib.error import HTTPError

_LIMIT_S = 120.0
_CLIENTS = 64


class Answers:
    """The answers to one load, of models that add 1.

    Attributes:
        took: when each was asked for, in seconds since it began, and how long that took.
        failures: what errors said.
        wrong: answers to something else.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.took: list[tuple[float, float]] = []
        self.failures: Counter[str] = Counter()
        self.wrong = 0

    def now(self) -> float:
        """Return seconds since it began."""
        return time.monotonic() - self.began

    def load(self, address: str, coming: Iterable[tuple[float, str]]) -> None:
        """Ask models at these moments, whatever became of those before; return when all is answered."""
        self.began = time.monotonic()
        with ThreadPoolExecutor(_CLIENTS) as clients:
            for number, (moment, model) in zip(itertools.count(), coming):
                time.sleep(max(0.0, moment - self.now()))
                clients.submit(self._ask, address, model, number)

    def _ask(self, address: str, model: str, number: int) -> None:
        began = self.now()
        try:
            answer, seconds = ask(address, model, number % 1000)
        except (OSError, RuntimeError) as error:
            self.failures[str(error)[:200]] += 1
            return
        self.took.append((began, seconds))
        self.wrong += answer != number % 1000 + 1

    def text(self) -> str:
        """Say what became of all of them."""
        failed = sum(self.failures.values())
        lines = [f"{len(self.took)} answered, {self.wrong} wrong, {failed} failed"]
        return "\n".join([*lines, *(f"  {n} x {text}" for text, n in self.failures.most_common(5))])


def ask(address: str, model: str, number: float) -> tuple[float, float]:
    """Ask a model that has an input x and an output y of one number; return its answer, and the seconds it took.

    Raises:
        RuntimeError: it answered with an error; what it said.
    """
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [number]}
    body = json.dumps({"inputs": [tensor]}).encode()
    began = time.monotonic()
    try:
        with request.urlopen(
            f"http://{address}/v2/models/{model}/infer", body, timeout=_LIMIT_S
        ) as answer:
            said = json.loads(answer.read())
    except HTTPError as error:
        with error:
            raise RuntimeError(f"{error.code}: {error.read().decode(errors='replace')}") from error
    return float(said["outputs"][0]["data"][0]), time.monotonic() - began


def at(seconds: list[float], share: float) -> float:
    """Return a percentile, 0.0 to 1.0, in milliseconds."""
    ranked = sorted(seconds)
    return 1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0


def load_of_machine() -> str:
    """Say how busy the machine was in the last minutes."""
    return "load of the machine (1, 5, 15 minutes): " + ", ".join(
        f"{one:.1f}" for one in os.getloadavg()
    )
