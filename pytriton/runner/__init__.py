"""A model repository as a Python object, whose attributes are the models. A model is called like a function.

    >>> from pytriton.runner import Runner                                   # doctest: +SKIP
    >>> with Runner("vision", model_repository="models") as runner:          # doctest: +SKIP
    ...     result = runner.onnx_mnist.run(images)
    ...     print(result.as_numpy("OUTPUT__0"))

The examples in BentoML's guide "Triton Inference Server" work with a changed import, without BentoML and without a
container: see docs/how-to/runner.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.runner.errors import RunnerArgumentError as RunnerArgumentError
    from pytriton.runner.model import RunnerModel as RunnerModel
    from pytriton.runner.result import InferResult as InferResult
    from pytriton.runner.runner import Runner as Runner

_NAMES = {
    "InferResult": "pytriton.runner.result",
    "Runner": "pytriton.runner.runner",
    "RunnerArgumentError": "pytriton.runner.errors",
    "RunnerModel": "pytriton.runner.model",
}
__all__ = ["InferResult", "Runner", "RunnerArgumentError", "RunnerModel"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_NAMES[name]), name)
    return value
