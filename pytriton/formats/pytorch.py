"""TorchScript files (`model.pt`) and torch.export programs (`model.pt2`), run by PyTorch.

These files do not contain names, data types and shapes of tensors, so config.pbtxt must declare them. Tensors are mapped
to arguments as in Triton's backend (pytorch_backend, "Model Configuration"): by the names of `forward`'s arguments, by
the number after `__` in the tensor's name, or else by position.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.formats.loaded import Array, FormatError, LoadedFile, names_of, parameter

_NUMBER = re.compile(r".*__(\d+)")


def load(path: str, config: Mapping[str, Any]) -> LoadedFile:
    """Load a file, with the parameters INTRA_OP_THREAD_COUNT and INTER_OP_THREAD_COUNT of Triton's backend.

    Raises:
        FormatError: two tensor names have the same number
    """
    torch = importlib.import_module("torch")
    for what in ("INTRA_OP", "INTER_OP"):
        threads = parameter(config, f"{what}_THREAD_COUNT")
        if threads:
            getattr(torch, f"set_num_{what.lower().replace('_', '')}_threads")(int(threads))
    # CUDA_VISIBLE_DEVICES="" means that the worker must not use a GPU.
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES") != "" and torch.cuda.is_available()
    device = "cuda:0" if gpu else "cpu"
    module, arguments = _read(torch, path, device)
    inputs, outputs = names_of(config, "input"), names_of(config, "output")
    order = in_order(inputs, arguments)
    results = in_order(outputs, ())

    def infer(arrays: dict[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            tensors = [
                torch.from_numpy(arrays[name]).to(device) for name in order if name in arrays
            ]
            answer = module(*tensors)
        parts = _parts(answer, outputs)
        if len(parts) < len(results):
            raise FormatError(
                f"the model returned {len(parts)} tensors, but its configuration has {len(results)} outputs"
            )
        named = parts if isinstance(parts, dict) else dict(zip(results, parts))
        return {name: named[name].detach().cpu().numpy() for name in outputs}

    return LoadedFile(None, None, infer)


def in_order(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Sort tensor names into the order of a model's arguments or results.

    Args:
        names: the names in the configuration
        arguments: the names of the model's arguments; empty if unknown

    Raises:
        FormatError: two names have the same number
    """
    if arguments and set(names) <= set(arguments):
        return [name for name in arguments if name in names]
    numbers = [_NUMBER.fullmatch(name) for name in names]
    if not all(numbers):
        return list(names)
    by_number = {int(match[1]): name for match, name in zip(numbers, names) if match}
    if len(by_number) < len(names):
        raise FormatError(f"two of the tensors {', '.join(names)} have the same number after '__'")
    return [by_number[number] for number in sorted(by_number)]


def _read(torch: Any, path: str, device: str) -> tuple[Any, list[str]]:
    """Load a module; return it with the names of its arguments, or an empty list if the file does not contain them."""
    if path.endswith(".pt2"):
        return torch.export.load(path).module().to(device), []
    module = torch.jit.load(path, map_location=device).eval()
    return module, [argument.name for argument in module.forward.schema.arguments[1:]]


def _parts(answer: Any, outputs: Sequence[str]) -> Any:
    if isinstance(answer, dict):
        missing = [name for name in outputs if name not in answer]
        if missing:
            raise FormatError(
                f"the model returned {', '.join(answer)}, but not {', '.join(missing)}"
            )
        return answer
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]
