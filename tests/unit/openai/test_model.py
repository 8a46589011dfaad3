"""`openai=` of `register`: the resulting model, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast

import numpy as np
import pytest

from pytriton._register.message import plan
from pytriton.declaration import declare
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.openai import Embeddings, ModelCard
from pytriton.openai.embeddings import packed
from pytriton.openai.model import served
from pytriton.proxy.types import Request

X = [Tensor(name="x", dtype=np.float32, shape=(1,))]


def chat(request: Any) -> Any:
    yield "x"


async def async_chat(request: Any) -> Any:
    yield "x"


class Chat:
    def __call__(self, request: Any) -> str:
        return "x"


def test_the_model_of_a_chat() -> None:
    planned = plan(chat, None, None, None, None, {"openai": "chat"})
    spec = planned.message.spec
    assert spec.openai is not None
    assert spec.openai.serves == ["chat"]
    assert spec.config["model_transaction_policy"] == {"decoupled": True}
    assert [one["name"] for one in spec.config["input"]] == ["request", "text_input", "stream"]
    assert (spec.name, spec.max_inflight_batches, spec.factory) == ("chat", 1, False)
    card = ModelCard(["chat", "responses"], owned_by="us", context_length=8, aliases=("org/m:8b",))
    spec = plan(async_chat, "m", None, None, None, {"openai": card}).message.spec
    assert spec.max_inflight_batches == 4
    assert spec.openai is not None
    assert (spec.openai.serves, spec.openai.context_length) == (["chat", "responses"], 8)
    assert spec.openai.aliases == ["org/m:8b"]


def test_classes_and_factories_are_called_in_the_worker() -> None:
    for target, given in ((Chat, {}), (lambda: chat, {"factory": True})):
        planned = plan(target, "m", None, None, None, {"openai": "chat", **given})
        assert planned.message.spec.factory
        made = planned.targets[0]()
        assert type(made).__name__ == "Texts"


def test_the_model_is_declared_too() -> None:
    @declare(name="mine", openai="chat")
    def talk(request: Any) -> Any:
        yield "x"

    spec = plan(talk, None, None, None, None, {}).message.spec
    assert spec.name == "mine"
    assert spec.openai is not None


@pytest.mark.parametrize(
    ("options", "arguments", "text"),
    [
        ({"openai": "chats"}, {}, "got 'chats'"),
        ({"openai": []}, {}, "an empty list"),
        ({"openai": 1}, {}, "got 1"),
        ({"openai": ["chat", "embeddings"]}, {}, "cannot be combined"),
        ({"openai": "chat"}, {"inputs": X}, "omit inputs and outputs"),
        ({"openai": "embeddings"}, {"config": ModelConfig(batching=False)}, "is batched"),
        ({"openai": "chat"}, {"name": "org/m:8b"}, r"ModelCard\('chat', aliases=\['org/m:8b'\]\)"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(options: Any, arguments: Any, text: str) -> None:
    given = {"name": "m", "inputs": None, "outputs": None, "config": None, **arguments}
    with pytest.raises(PyTritonValidationError, match=text):
        plan(chat, given["name"], given["inputs"], given["outputs"], given["config"], options)


@pytest.mark.parametrize("aliases", ["org/m", 5, [""], ["a\n"], ["x" * 201], [5]], ids=str)
def test_invalid_aliases(aliases: Any) -> None:
    with pytest.raises(PyTritonValidationError, match=r"aliases|alias"):
        ModelCard("chat", aliases=aliases)


def test_a_callable_without_parameters_is_refused() -> None:
    with pytest.raises(PyTritonValidationError, match="as its only argument"):
        plan(lambda: chat, "m", None, None, None, {"openai": "chat"})


def test_one_call_embeds_the_texts_of_all_requests() -> None:
    seen = []

    def embed(texts: list[Any]) -> Any:
        seen.append(texts)
        return np.array([[len(text), 1] for text in texts], np.float64)

    requests = [
        Request({"input_text": np.array([[packed("a")], [packed("äb")]], object)}),
        Request({"input_text": np.array([[packed([5, 6, 7])]], object)}),
    ]
    results = served(embed, ["embeddings"])(requests)
    assert seen == [["a", "äb", [5, 6, 7]]]
    assert [one["embedding"].tolist() for one in results] == [[[1, 1], [2, 1]], [[3, 1]]]
    assert results[0]["embedding"].dtype == np.float32
    counted = served(lambda texts: Embeddings(np.zeros((3, 2)), [4, 5, 6]), ["embeddings"])(
        requests
    )
    assert [one["prompt_tokens"].tolist() for one in counted] == [[[4], [5]], [[6]]]
    with pytest.raises(ValueError, match="a row for each of the 3 texts"):
        served(lambda texts: np.zeros((2, 2)), ["embeddings"])(requests)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            np.full((1, 2), 1e39),
            r"numbers that float32 cannot represent: 1e\+39 is out of the range",
        ),
        (np.ma.masked_array(np.ones((1, 2)), [[False, True]]), "is a masked array"),
        (Embeddings(np.zeros((1, 2)), [1 << 40]), "prompt_tokens must contain"),
        (Embeddings(np.zeros((1, 2)), cast(Any, [1.5])), "prompt_tokens must contain"),
    ],
)
def test_embeddings_that_lose_values_are_refused(made: Any, text: str) -> None:
    request = Request({"input_text": np.array([[packed("a")]], object)})
    with pytest.raises(ValueError, match=text):
        served(lambda texts: made, ["embeddings"])([request])


async def _embed_async(texts: list[Any], dimensions: int | None = None) -> Any:
    return _embed(texts, dimensions=dimensions)


def _embed(texts: list[Any], *, dimensions: int | None) -> Any:
    return np.full((len(texts), dimensions or 3), len(texts))


@pytest.mark.parametrize("embed", [_embed, _embed_async])
def test_requested_dimensions_are_passed_to_the_callable(embed: Any) -> None:
    """One call for each number of dimensions; the answers are in the requests' order."""
    texts = {"input_text": np.array([[packed("a")]], object)}
    asked = [{"dimensions": 2}, None, {"dimensions": 2}, {"other": 1}]
    results = served(embed, ["embeddings"])([Request(texts, parameters=one) for one in asked])
    if inspect.iscoroutine(results):
        results = asyncio.run(results)
    assert [one["embedding"].tolist() for one in results] == [[[2, 2]], [[2, 2, 2]]] * 2
