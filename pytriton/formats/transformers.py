"""Pipelines from Hugging Face's transformers, with the request bodies of its Inference API: `inputs` and `parameters`."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

from typing_extensions import NotRequired, TypedDict

from pytriton.decorators.wrapping import Kind
from pytriton.exceptions import HTTPError
from pytriton.formats.loaded import FormatError
from pytriton.formats.tools import ToolModel, file_at, has_gpu
from pytriton.typed.markers import Batching, UploadFile
from pytriton.typed.signature import Parameter, Signature

#: Largest batch of the tasks that are batched; the same default as for @batchable.
_BATCH_SIZE = 32


class Label(TypedDict):
    """A class, and how sure the model is of it."""

    label: str
    score: float


class Entity(TypedDict, total=False):
    """A labeled part of a text."""

    entity: str
    entity_group: str
    score: float
    index: int
    word: str
    start: Optional[int]
    end: Optional[int]


class Fill(TypedDict):
    """A candidate for the masked part of a text."""

    score: float
    token: int
    token_str: str
    sequence: str


class Question(TypedDict):
    """A question, and the text that contains the answer."""

    question: str
    context: str


class Answer(TypedDict):
    """A part of the text that answers a question."""

    answer: str
    score: float
    start: int
    end: int


class Generated(TypedDict):
    """A generated text."""

    generated_text: Any


class Ranking(TypedDict):
    """Labels, most likely first."""

    sequence: NotRequired[str]
    labels: list[str]
    scores: list[float]


class Detection(TypedDict):
    """An object in an image."""

    label: str
    score: float
    box: dict[str, int]


class Transcript(TypedDict):
    """Text of a recording."""

    text: str
    chunks: NotRequired[list[Any]]


@dataclass(frozen=True)
class _Task:
    """The types of a pipeline's input and result.

    Args:
        inputs: type of an input
        result: type of the result for one input
        batched: whether inputs of several requests may be passed as one batch
    """

    inputs: Any
    result: Any
    batched: bool = False


_TASKS: Mapping[str, _Task] = {
    "audio-classification": _Task(UploadFile, list[Label]),
    "automatic-speech-recognition": _Task(UploadFile, Transcript),
    "depth-estimation": _Task(UploadFile, dict[str, Any]),
    "document-question-answering": _Task(UploadFile, list[Any]),
    "feature-extraction": _Task(str, list[Any]),
    "fill-mask": _Task(str, list[Union[Fill, list[Fill]]]),
    "image-classification": _Task(UploadFile, list[Label], batched=True),
    "image-feature-extraction": _Task(UploadFile, list[Any]),
    "image-segmentation": _Task(UploadFile, list[Any]),
    "image-to-text": _Task(UploadFile, list[Generated]),
    "object-detection": _Task(UploadFile, list[Detection]),
    "question-answering": _Task(Question, Union[Answer, list[Answer]]),
    "summarization": _Task(str, list[Any]),
    "table-question-answering": _Task(dict[str, Any], Any),
    "text-classification": _Task(str, list[Label], batched=True),
    "text-generation": _Task(str, list[Generated]),
    "text2text-generation": _Task(str, list[Generated]),
    "token-classification": _Task(str, list[Entity], batched=True),
    "translation": _Task(str, list[Any]),
    "zero-shot-audio-classification": _Task(UploadFile, list[Label]),
    "zero-shot-classification": _Task(str, Ranking),
    "zero-shot-image-classification": _Task(UploadFile, list[Label]),
    "zero-shot-object-detection": _Task(UploadFile, list[Detection]),
}
_ALIASES = {"ner": "token-classification", "sentiment-analysis": "text-classification"}
#: Pipelines for these tasks take images; the others take the content of a file.
_IMAGES = (
    "depth-estimation",
    "document-question-answering",
    "image-classification",
    "image-feature-extraction",
    "image-segmentation",
    "image-to-text",
    "object-detection",
    "zero-shot-image-classification",
    "zero-shot-object-detection",
)


def open_model(location: str) -> ToolModel:
    """Look up a task.

    Args:
        location: TASK=PATH, the folder of a saved model

    Raises:
        FormatError: the pipeline's task is unknown, or there is no such folder.
    """
    name, _, path = location.partition("=")
    folder = file_at(path, "Transformers")
    task = _ALIASES.get(name, "translation" if name.startswith("translation_") else name)
    if task not in _TASKS:
        raise FormatError(
            f"hf:{location}: {name!r} is not one of the tasks {', '.join([*_TASKS, *_ALIASES])}"
        )
    about = _TASKS[task]
    signature = Signature(
        name=name,
        parameters=(
            Parameter("inputs", about.inputs, required=True),
            Parameter("parameters", Optional[dict[str, Any]], required=False),
        ),
        result=about.result,
        kind=Kind.FUNCTION,
        batching=Batching(_BATCH_SIZE, 0.0) if about.batched else None,
        doc=f"Run the pipeline {name}.\n\nArgs:\n    inputs: the input\n    parameters: arguments of the pipeline\n",
    )
    return ToolModel(
        re.sub(r"[^\w.-]", "_", folder.name), signature, lambda: _load(name, task, path)
    )


def _load(name: str, task: str, path: str) -> Callable[..., Any]:
    pipeline = importlib.import_module("transformers").pipeline(
        name, model=path, device=0 if has_gpu() else -1
    )
    convert = _image if task in _IMAGES else _content

    def run(inputs: Any, parameters: dict[str, Any] | None = None) -> Any:
        try:
            return pipeline(convert(inputs), **(parameters or {}))
        except TypeError as error:
            # An argument that the pipeline does not have.
            if parameters and any(one in str(error) for one in parameters):
                raise HTTPError(422, f"parameters: {error}") from error
            raise

    def run_batch(inputs: list[Any], parameters: list[dict[str, Any] | None]) -> list[Any]:
        results: list[Any] = [None] * len(inputs)
        groups: dict[str, list[int]] = {}
        for index, one in enumerate(parameters):
            groups.setdefault(repr(sorted((one or {}).items())), []).append(index)
        for indexes in groups.values():
            try:
                several = run_group([inputs[index] for index in indexes], parameters[indexes[0]])
            except HTTPError as error:
                several = [error] * len(indexes)
            for index, result in zip(indexes, several):
                results[index] = result
        return results

    def run_group(inputs: list[Any], parameters: dict[str, Any] | None) -> list[Any]:
        if len(inputs) == 1:
            found = [run(inputs[0], parameters)]
        else:
            values = [convert(one) for one in inputs]
            found = list(pipeline(values, batch_size=len(values), **(parameters or {})))
        return [[one] if isinstance(one, dict) else one for one in found]  # top_k=1

    return run_batch if _TASKS[task].batched else run


def _image(upload: UploadFile) -> Any:
    image = importlib.import_module("PIL.Image")
    try:
        return image.open(io.BytesIO(upload.data)).convert("RGB")
    except Exception as error:  # Pillow raises many kinds for broken files
        raise HTTPError(422, f"inputs: Expected an image file: {error}") from error


def _content(value: Any) -> Any:
    return value.data if isinstance(value, UploadFile) else value
