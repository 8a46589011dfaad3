"""The work of the models: the same functions in every system.

This file is copied or put on the path of every system's own environment, so it imports nothing but numpy.
Arrays have the batch axis first where the model has batching.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = Any

_tables: dict[int, list[Array]] = {}


def spec() -> dict[str, Any]:
    """Read the JSON file named on the command line: the model to serve, and the ports."""
    with open(sys.argv[1], encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def spin(turns: float) -> int:
    """Keep a CPU busy with Python bytecode."""
    total = 0
    for turn in range(int(turns)):
        total += turn & 7
    return total


def turns_for(seconds: float) -> int:
    """Return the number of turns of `spin` that take this time on an undisturbed CPU."""
    turns, best = 20_000, float("inf")
    end = time.monotonic() + 3.0  # long enough to include an undisturbed moment
    while time.monotonic() < end:
        start = time.perf_counter()
        spin(turns)
        best = min(best, time.perf_counter() - start)
    return int(turns * seconds / best)


def functions(model: dict[str, Any]) -> dict[str, Callable[[Array], Array]]:
    """Return what models with tensors can do, by the name of the work."""
    amount = model["amount"]

    def identity(x: Array) -> Array:
        return x

    def spinning(x: Array) -> Array:
        spin(amount)
        return x

    def nap(x: Array) -> Array:
        time.sleep(amount)
        return x

    def table(x: Array) -> Array:
        return tables(int(amount))[int(x.reshape(-1)[1]) % 2]

    def device(x: Array) -> Array:
        time.sleep(amount)
        return x[..., :4]

    return {"identity": identity, "spin": spinning, "nap": nap, "table": table, "device": device}


def function(model: dict[str, Any]) -> Callable[[Array], Array]:
    """Return the function of a model. Its input and output are batches if the model has batching."""
    return functions(model)[model["work"]]


def callable_of(model: dict[str, Any], batch: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the callable as a user of PyTriton would write it. `batch` is its decorator."""
    if model["decoupled"]:

        def stream(requests: Any) -> Iterator[Any]:
            for token in tokens(model):
                yield [{"y": token} for _ in requests]

        return stream
    compute = function(model)
    if model["max_batch_size"]:

        def batched(x: Any) -> dict[str, Any]:
            return {"y": compute(x)}

        decorated: Callable[..., Any] = batch(batched)
        return decorated

    def single(requests: Any) -> list[dict[str, Any]]:
        return [{"y": compute(request["x"])} for request in requests]

    return single


async def openai_tokens(name: str) -> AsyncIterator[str]:
    """Yield the 100 tokens of the model `burst`, at once, or `paced`, one every 10 ms."""
    for number in range(100):
        if name == "paced":
            await asyncio.sleep(0.01)
        yield f"token{number} "


def embed(texts: Sequence[Any]) -> Array:
    """Return a row for each text. A batch takes 3 ms, whatever its size."""
    time.sleep(0.003)
    return np.full((len(texts), 384), 0.25, np.float32)


def predict(text: str, top_k: int = 3) -> list[dict[str, Any]]:
    """Return the first words of a text as labels, with a score for each. A typed function."""
    words = text.split()[:top_k]
    return [{"label": word, "score": 1 / (place + 1)} for place, word in enumerate(words)]


def measure(image: bytes) -> dict[str, int]:
    """Return the size of an uploaded image. A typed function."""
    return {"size": len(image)}


def tables(size: int) -> list[Array]:
    """Return the two results of `table`. They are created once, because only their transfer is measured."""
    if size not in _tables:
        row = np.arange(size, dtype=np.float32) % 1024
        _tables[size] = [row + 1, row]
    return _tables[size]


def tokens(model: dict[str, Any]) -> Iterator[Array]:
    """Yield the responses of a stream, one number each."""
    for index in range(int(model["amount"])):
        yield np.array([index], dtype=np.float32)


def decode(model: dict[str, Any], body: bytes) -> Array:
    """Return the array in a raw body: float32, or strings, each preceded by its length in 4 bytes."""
    if model["dtype"] != "BYTES":
        return np.frombuffer(body, dtype=np.float32)
    body = bytes(body)  # mosec passes a memoryview
    strings, position = [], 0
    while position < len(body):
        (length,) = struct.unpack_from("<I", body, position)
        strings.append(body[position + 4 : position + 4 + length])
        position += 4 + length
    return np.array(strings, dtype=object)


def encode(model: dict[str, Any], array: Array) -> bytes:
    """Return an array as a raw body; see `decode`."""
    if model["dtype"] != "BYTES":
        raw: bytes = array.tobytes()
        return raw
    return b"".join(struct.pack("<I", len(item)) + item for item in array.tolist())
