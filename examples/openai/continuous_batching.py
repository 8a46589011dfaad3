"""Continuous batching: each step of the model advances all requests in flight, and new requests join at any time.

    pytriton-daemon start --detach
    python examples/openai/continuous_batching.py

The callable is an asynchronous generator. The worker runs up to 256 of them at a time, and each reads from its own
queue. They share one engine in the worker. The model here is a small numpy network with random weights, so its answers
are nonsense; put a real model into `Model.step`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytriton.daemon import connect
from pytriton.openai import ChatRequest, Delta, Usage

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sees",
    "hears",
    "likes",
    "and",
    "or",
    "in",
    "no",
    "one",
    "we",
    ".",
    "?",
]
STATE = 64
#: Requests that a step takes at most; the others wait for a place.
MAX_ACTIVE = 32


class Model:
    """A recurrent network with random weights."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._in = random.normal(size=(len(WORDS), STATE)).astype(np.float32)
        self._back = random.normal(size=(STATE, STATE)).astype(np.float32) / 8
        self._out = random.normal(size=(STATE, len(WORDS))).astype(np.float32)
        self._random = random

    def begin(self, text: str) -> Any:
        """Return the state after a prompt."""
        state = np.zeros(STATE, np.float32)
        for word in text.split():
            state = np.tanh(self._in[hash(word) % len(WORDS)] + state @ self._back)
        return state

    def step(self, states: Any) -> tuple[Any, Any]:
        """Return the new states of all requests and the next token of each, with one matrix product for all."""
        scores = states @ self._out
        tokens = (scores + self._random.gumbel(size=scores.shape)).argmax(axis=1)
        return np.tanh(self._in[tokens] + states @ self._back), tokens


@dataclass(eq=False)
class Sequence:
    """One request in the engine."""

    state: Any
    left: int
    tokens: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    gone: bool = False


class Engine:
    """Runs steps as long as there are requests."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._waiting: list[Sequence] = []
        self._stepping: asyncio.Task[None] | None = None
        self.batches: list[int] = []  #: how many requests each step had

    async def tokens(self, prompt: str, most: int) -> AsyncIterator[str]:
        """Yield the tokens of one answer."""
        sequence = Sequence(self._model.begin(prompt), most)
        self._waiting.append(sequence)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.ensure_future(self._steps())
        try:
            while True:
                token = await sequence.tokens.get()
                if token is None:
                    return
                if isinstance(token, Exception):
                    raise token
                yield token
        finally:  # also if the client has disconnected: its place is free at the next step
            sequence.gone = True

    async def _steps(self) -> None:
        active: list[Sequence] = []
        try:
            while self._waiting or active:
                free = MAX_ACTIVE - len(active)
                active += self._waiting[:free]
                del self._waiting[:free]
                states = np.stack([one.state for one in active])
                # In a thread, so that new requests can arrive during the step.
                states, tokens = await asyncio.to_thread(self._model.step, states)
                self.batches.append(len(active))
                for one, state, token in zip(active, states, tokens):
                    one.state = state
                    one.left -= 1
                    one.tokens.put_nowait(WORDS[token] + " ")
                    if one.left == 0:
                        one.tokens.put_nowait(None)
                active = [one for one in active if one.left and not one.gone]
        except Exception as error:
            for one in [*active, *self._waiting]:
                one.tokens.put_nowait(error)
            self._waiting.clear()


class Chat:
    """The callable. Each worker creates one."""

    def __init__(self) -> None:
        self.engine = Engine(Model())

    async def __call__(self, request: ChatRequest) -> AsyncIterator[Any]:
        """Answer a chat."""
        prompt = request.messages[-1].text
        most = request.max_tokens or 50
        count = 0
        async for token in self.engine.tokens(prompt, most):
            count += 1
            yield token
        usage = Usage(prompt_tokens=len(prompt.split()), completion_tokens=count)
        yield Delta(usage=usage, finish_reason="length")


if __name__ == "__main__":
    connect().register(Chat, "batched", openai="chat", factory=True, replace=True)
