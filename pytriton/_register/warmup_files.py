"""Prepares warm-ups for the workers: files are read here, where they are; data is generated there."""

from __future__ import annotations

from pytriton._protocol import messages
from pytriton.model_config import ModelConfig, ModelWarmup, WarmupInput
from pytriton.model_config.dtypes import to_triton_datatype

__all__ = ["warmup_messages"]


def warmup_messages(config: ModelConfig | None, *, batching: bool) -> list[messages.Warmup]:
    """Return a model's warm-ups in the form sent to its workers.

    Args:
        config: the model's configuration
        batching: whether requests have a batch axis

    Raises:
        PyTritonBadParameterError: a file cannot be read, or its array does not fit
    """
    warmups = (config.model_warmup if config is not None else None) or ()
    return [
        messages.Warmup(
            warmup.name,
            warmup.batch_size,
            warmup.count,
            [_tensor(name, source, warmup, batching) for name, source in warmup.inputs.items()],
        )
        for warmup in warmups
    ]


def _tensor(
    name: str, source: WarmupInput, warmup: ModelWarmup, batching: bool
) -> messages.WarmupTensor:
    datatype, shape = to_triton_datatype(source.dtype), list(source.shape)
    if source.input_data_file is None:
        return messages.WarmupTensor(
            name, datatype, shape, "zero" if source.zero_data else "random"
        )
    source.generate(warmup.batch_size if batching else 0)  # raises if the data does not fit
    return messages.WarmupTensor(name, datatype, shape, "file", source.file_content())
