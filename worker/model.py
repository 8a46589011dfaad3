"""The model of one worker: its declaration and its callable, and how one batch goes through them."""

from __future__ import annotations

import traceback
from typing import Any

from pytriton.decorators import set_triton_context
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.ipc import datatypes, messages
from pytriton.ipc.errors import sendable
from pytriton.ipc.lane import Batch, BatchDone, BatchFailed, Lane
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.worker.callables import Infer, synchronous
from pytriton.worker.inputs import read_requests
from pytriton.worker.results import Output, ResultWriter


class Model:
    """A loaded callable with what is declared about it."""

    def __init__(self, spec: messages.ModelSpec, infer: Infer) -> None:
        self.name = spec.name
        self._infer = synchronous(infer)
        self._batching = spec.config.get("max_batch_size", 0) > 0
        self._results = ResultWriter(
            spec.name,
            [_output(entry) for entry in spec.config["output"]],
            batching=self._batching,
            strict=spec.strict,
        )
        for entry in spec.config["input"]:
            # What is missing for it (ml_dtypes) shows now, not at a request.
            datatypes.element_dtype(datatypes.of_config(entry["data_type"]))
        declared = TritonModelConfig.from_triton_config(spec.config, spec.version)
        set_triton_context(infer, declared)

    def answer(self, batch: Batch, lane: Lane) -> BatchDone | BatchFailed:
        """Run the callable on a batch and return its answer, or the error that the clients get.

        Raises:
            Unrecoverable: the callable said so; carries the answer to give before the daemon stops.
        """
        try:
            requests = read_requests(batch.requests, lane, batching=self._batching)
            results = self._infer(requests)
            return BatchDone(batch.id, self._results.write(results, batch.requests, lane))
        except PyTritonUnrecoverableError as error:
            traceback.print_exc()
            text = _one_line(error)
            raise Unrecoverable(BatchFailed(batch.id, text), text) from error
        except Exception as error:
            traceback.print_exc()
            return BatchFailed(batch.id, _one_line(error))


class Unrecoverable(Exception):
    """The callable raised PyTritonUnrecoverableError. `answer` goes to the clients, `text` to the dispatcher."""

    def __init__(self, answer: BatchFailed, text: str) -> None:
        super().__init__(text)
        self.answer = answer
        self.text = text


def _one_line(error: Exception) -> str:
    return sendable(f"{type(error).__name__}: {error}")


def _output(entry: dict[str, Any]) -> Output:
    datatype = datatypes.of_config(entry["data_type"])
    dims = entry.get("reshape", {}).get("shape", entry["dims"])
    return Output(entry["name"], datatype, datatypes.element_dtype(datatype), tuple(dims))
