"""Warm-up: requests that a loading worker runs through its model before it reports that it is ready.

The requests are those declared by the registrant (`ModelWarmup`) and those of the configuration (`model_warmup`). They
run in the worker instead of Triton's core for three reasons:

- The core warms up each of its instances once. These are proxies, so a worker that is started later (a replacement, a
  standby, or one added by scaling) would serve its first client cold.
- The core only receives the text of an exception. In the worker, the registration fails with the traceback.
- A failed warm-up in the core may crash the whole server. It stops the instance's thread while that thread is returning
  the instance to its queue, and reads before the start of the empty queue (`TritonBackendThread::StopBackendThread`,
  seen in 2.51).
"""

from __future__ import annotations

import io
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytriton._protocol import datatypes, messages, numpy_types
from pytriton._protocol.lanes import tensors
from pytriton._protocol.lanes.lane import Lane
from pytriton._protocol.lanes.tensors import Array
from pytriton.model_config import ModelWarmup, WarmupInput
from pytriton.worker.fault_reports import callable_errors, client_text, note
from pytriton.worker.model import WorkerModel


class WarmupError(Exception):
    """A warm-up failed; the text says which one, and why."""


#: Subfolder of a model's folder with the data files of `model_warmup`, as in Triton.
_FILES = "warmup"


def warm_up(model: WorkerModel, spec: messages.ModelSpec) -> None:
    """Run the model's warm-ups, each time with new arrays. The answers are checked and written as if they were for
    clients.

    Raises:
        WarmupError: the model raised an exception, its answers do not match the declaration, or a configured warm-up is
            invalid.
    """
    configured = spec.config.get("model_warmup", ())
    if not spec.warmups and not configured:
        return
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lanes = [Lane(end, peer_trusted=True) for end in ends]
    try:
        for message in spec.warmups:
            _run_declared(model, message, lanes[0])
        for sample in configured:
            _run_configured(model, spec, sample, lanes[0])
    finally:
        for lane in lanes:
            lane.close()


def _run_declared(model: WorkerModel, message: messages.Warmup, lane: Lane) -> None:
    warmup = ModelWarmup(
        message.name,
        message.batch_size,
        {tensor.name: _source(tensor) for tensor in message.inputs},
        message.count,
    )
    _run(
        model,
        warmup.name,
        warmup.count,
        lambda: [warmup.arrays(batching=model.batching)],
        [{tensor.name: tensor.datatype for tensor in message.inputs}],
        lane,
    )


def _run_configured(
    model: WorkerModel, spec: messages.ModelSpec, sample: Mapping[str, Any], lane: Lane
) -> None:
    """Run one entry of `model_warmup` as Triton does: a batch of `batch_size` requests with one row each."""
    name, size = str(sample.get("name", "")), int(sample.get("batch_size", 0))
    inputs: Mapping[str, Any] = sample.get("inputs", {})
    _check_inputs(model.name, name, inputs, spec.config)
    sources = {
        one: _Configured(model, name, one, source, _folder(spec)) for one, source in inputs.items()
    }
    _run(
        model,
        name,
        max(1, int(sample.get("count", 0))) if size else 0,
        lambda: [{one: source.array() for one, source in sources.items()} for _ in range(size)],
        [{one: source.datatype for one, source in sources.items()}] * size,
        lane,
    )


def _run(
    model: WorkerModel,
    name: str,
    count: int,
    arrays: Callable[[], list[dict[str, Array]]],
    types: Sequence[Mapping[str, str]],
    lane: Lane,
) -> None:
    """Run a warm-up batch `count` times. `arrays` creates the inputs of its requests, and is called for each run."""
    started = time.monotonic()
    try:
        for _ in range(count):
            model.warm_up(arrays(), types, lane)
    except callable_errors() as error:
        raise WarmupError(
            f"model {model.name}: its warm-up {name!r} failed: {client_text(error)}"
        ) from error
    took = time.monotonic() - started
    note(f"warm-up {name!r}: {count} batches in {took:.3f} s")


def _source(tensor: messages.WarmupTensor) -> WarmupInput:
    return WarmupInput(
        tensor.datatype,
        tuple(tensor.shape),
        zero_data=tensor.source == "zero",
        random_data=tensor.source == "random",
        input_data_file=io.BytesIO(tensor.npy) if tensor.source == "file" else None,
    )


def _folder(spec: messages.ModelSpec) -> Path:
    """Return the model's folder. It is the working directory of workers whose model has no model.py."""
    return Path(spec.python_model.folder if spec.python_model is not None else spec.world.cwd)


def _check_inputs(
    model: str, warmup: str, inputs: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Check that a configured warm-up has every required input of the model, with the right types.

    Raises:
        WarmupError: an input is missing or has the wrong type.
    """
    for entry in config.get("input", ()):
        given = inputs.get(entry["name"])
        if given is None:
            if not entry.get("optional"):
                text = f"it has no data for the input {entry['name']!r}"
                raise WarmupError(f"model {model}: its warm-up {warmup!r} failed: {text}")
        elif given.get("data_type") != entry["data_type"]:
            text = (
                f"it has {given.get('data_type')} data for the input {entry['name']!r}, whose type is "
                f"{entry['data_type']}"
            )
            raise WarmupError(f"model {model}: its warm-up {warmup!r} failed: {text}")


class _Configured:
    """Source of the data for one input of a `model_warmup` entry.

    Raises:
        WarmupError: a dimension is unknown, or the data file is missing or too small.
    """

    def __init__(
        self, model: WorkerModel, warmup: str, name: str, source: Mapping[str, Any], folder: Path
    ) -> None:
        self._where = f"model {model.name}: its warm-up {warmup!r} failed: the input {name!r}"
        self.datatype = datatypes.of_config(str(source.get("data_type", "")))
        dims = [int(size) for size in source.get("dims", ())]
        if any(size < 0 for size in dims):
            raise WarmupError(f"{self._where} has the shape {dims}: every dimension must be known")
        self._batch = 1 if model.batching else 0
        self._shape = (*[1] * self._batch, *dims)
        self._seed = zlib.crc32(f"{warmup}/{name}".encode())
        self._raw: bytes | None = None
        self._made: WarmupInput | None = None
        if "input_data_file" in source:
            self._raw = self._read(folder, str(source["input_data_file"]))
        elif source.get("zero_data") or source.get("random_data"):
            zero = bool(source.get("zero_data"))
            self._made = WarmupInput(
                self.datatype, tuple(dims), zero_data=zero, random_data=not zero
            )
        else:
            text = "needs one of zero_data, random_data and input_data_file"
            raise WarmupError(f"{self._where} {text}")

    def array(self) -> Array:
        """Return a new array for one request."""
        if self._made is not None:
            return self._made.generate(self._batch, self._seed)
        assert self._raw is not None
        if self.datatype == "BYTES":
            return tensors.decode_bytes(memoryview(self._raw), self._shape)
        dtype = numpy_types.element_dtype(self.datatype)
        count = int(np.prod(self._shape))
        if len(self._raw) < count * dtype.itemsize:
            text = f"needs {count * dtype.itemsize} bytes, but its file has {len(self._raw)}"
            raise WarmupError(f"{self._where} {text}")
        array: Array = np.frombuffer(self._raw, dtype, count).reshape(self._shape).copy()
        return array

    def _read(self, folder: Path, file: str) -> bytes:
        place = folder / _FILES / file
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise WarmupError(f"{self._where}: the file {file!r} is not in {folder / _FILES}")
        try:
            return place.read_bytes()
        except OSError as error:
            raise WarmupError(f"{self._where}: {place} cannot be read: {error.strerror}") from error
