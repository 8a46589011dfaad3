"""The Triton model for a callable that is served through the OpenAI API: its tensors and its configuration."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pytriton.decorators.wrapping import Kind, kind_of
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.openai.card import ModelCard
from pytriton.openai.embeddings import EMBEDDING, INPUT, TOKENS, AsyncTextEmbedding, TextEmbedding
from pytriton.openai.invocation import REQUEST, STREAM, TEXT
from pytriton.openai.serving import OUTPUT, AsyncTexts, Texts

__all__ = ["MAX_TEXTS", "OpenAIModel", "make_model"]

#: Maximum number of texts per call of an embedding callable, unless its configuration sets another one.
MAX_TEXTS = 64
#: Streams that a worker may have in flight per proxy; an asynchronous callable gets several proxies.
_LANES = 4

_TEXT_INPUTS = [
    Tensor(name=REQUEST, dtype=bytes, shape=(1,), optional=True),
    Tensor(name=TEXT, dtype=bytes, shape=(1,), optional=True),
    Tensor(name=STREAM, dtype=np.bool_, shape=(1,), optional=True),
]
_TEXT_OUTPUTS = [Tensor(name=OUTPUT, dtype=bytes, shape=(1,))]
_EMBEDDING_INPUTS = [Tensor(name=INPUT, dtype=bytes, shape=(1,))]
_EMBEDDING_OUTPUTS = [
    Tensor(name=EMBEDDING, dtype=np.float32, shape=(-1,)),
    Tensor(name=TOKENS, dtype=np.int32, shape=(1,)),
]


class OpenAIModel(NamedTuple):
    """What is registered for a model of the OpenAI API: inference callables, tensors and configuration.

    Attributes:
        targets: an inference callable for each of the user's callables, or a factory for it
        factory: whether the targets are factories, which workers call
        lanes: number of proxies that send requests to one worker; None: default
    """

    targets: list[Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    config: ModelConfig
    factory: bool
    lanes: int | None


class WrappingFactory:
    """A factory that calls the user's factory in the worker, and wraps the resulting callable."""

    def __init__(self, factory: Callable[[], Any], kinds: list[str]) -> None:
        self.factory = factory
        self.kinds = kinds

    def __call__(self) -> Any:
        """Create the inference callable."""
        return served(self.factory(), self.kinds)


def make_model(
    targets: list[Any], card: ModelCard, config: ModelConfig | None, *, factory: bool
) -> OpenAIModel:
    """Create the inference callables, tensors and configuration of a model that serves callables through the API.

    Args:
        targets: the callables, or factories
        card: card with the routes that the callables serve
        config: the user's configuration; embeddings require batching, other routes ignore this setting
        factory: whether `targets` are factories

    Raises:
        PyTritonValidationError: the configuration is not possible for these routes
    """
    kinds = card.kinds
    made = factory or any(inspect.isclass(target) for target in targets)
    wrapped = [WrappingFactory(one, kinds) if made else served(one, kinds) for one in targets]
    if kinds == ["embeddings"]:
        chosen = config or ModelConfig(max_batch_size=MAX_TEXTS)
        if not chosen.batching or chosen.decoupled:
            raise PyTritonValidationError(
                "A model with openai='embeddings' is batched and sends one response to each request. Leave "
                "batching=False and decoupled=True out of its ModelConfig."
            )
        return OpenAIModel(wrapped, _EMBEDDING_INPUTS, _EMBEDDING_OUTPUTS, chosen, made, None)
    chosen = dataclasses.replace(config or ModelConfig(), batching=False, decoupled=True)
    asynchronous = made or _is_async(targets[0])
    lanes = _LANES if asynchronous else 1
    return OpenAIModel(wrapped, _TEXT_INPUTS, _TEXT_OUTPUTS, chosen, made, lanes)


def served(target: Any, kinds: list[str]) -> Any:
    """Wrap a callable for the OpenAI API in an inference callable."""
    if kinds == ["embeddings"]:
        return AsyncTextEmbedding(target) if _is_async(target) else TextEmbedding(target)
    return AsyncTexts(target, kinds) if _is_async(target) else Texts(target, kinds)


def _is_async(target: Any) -> bool:
    return kind_of(target) in (Kind.COROUTINE, Kind.ASYNC_GENERATOR)
