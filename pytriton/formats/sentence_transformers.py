"""Models of Sentence Transformers: embeddings of texts, with the bodies of Text Embeddings Inference."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Optional, Union

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError
from pytriton.formats.tools import ToolModel, file_at, has_gpu
from pytriton.typed.markers import Batching
from pytriton.typed.signature import Parameter, Signature

#: Largest number of requests in a batch; the model splits their texts into batches of its own.
_BATCH_SIZE = 64
_DOC = """Return the embedding of each text.

Args:
    inputs: one text, or several
    normalize: scale embeddings to length 1
    prompt_name: name of a prompt of the model, which is put before each text
"""


def open_model(location: str) -> ToolModel:
    """Describe a model in a folder.

    Raises:
        FormatError: there is no such folder.
    """
    folder = file_at(location, "Sentence Transformers")
    signature = Signature(
        name="embed",
        parameters=(
            Parameter("inputs", Union[str, list[str]], required=True),
            Parameter("normalize", bool, required=False, default=False),
            Parameter("prompt_name", Optional[str], required=False),
        ),
        result=list[list[float]],
        kind=Kind.FUNCTION,
        batching=Batching(_BATCH_SIZE, 0.0),
        doc=_DOC,
    )
    return ToolModel(re.sub(r"[^\w.-]", "_", folder.name), signature, lambda: _load(location))


def _load(location: str) -> Callable[..., Any]:
    model = importlib.import_module("sentence_transformers").SentenceTransformer(
        location, device="cuda" if has_gpu() else "cpu"
    )

    def embed(
        inputs: list[str | list[str]], normalize: list[bool], prompt_name: list[str | None]
    ) -> list[Any]:
        results: list[Any] = [[] for _ in inputs]
        texts: dict[tuple[bool, str | None], list[tuple[int, str]]] = {}
        for index, given in enumerate(inputs):
            name = prompt_name[index]
            if name is not None and name not in model.prompts:
                known = ", ".join(model.prompts) or "none"
                results[index] = HTTPError(422, f"prompt_name: {name!r} is not one of: {known}")
                continue
            several = [given] if isinstance(given, str) else given
            group = texts.setdefault((normalize[index], name), [])
            group += [(index, text) for text in several]
        for (normalized, name), group in texts.items():
            vectors = model.encode(
                [text for _, text in group],
                prompt_name=name,
                normalize_embeddings=normalized,
                show_progress_bar=False,
            )
            for (index, _), vector in zip(group, vectors):
                results[index].append(vector.tolist())
        return results

    return embed
