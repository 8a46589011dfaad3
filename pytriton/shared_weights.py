"""Weights that all workers of a machine have in common."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pytriton._sharing import files, segments, trees
from pytriton._sharing.segments import Buffer
from pytriton._sharing.trees import Layout
from pytriton.exceptions import PyTritonValidationError

__all__ = ["shared"]

_FRAMEWORKS = ("numpy", "torch")


class _Making(threading.local):
    """The key under which this thread makes something."""

    label: str | None = None


_making = _Making()


def shared(
    source: Any,
    *,
    key: str | os.PathLike[str] | None = None,
    framework: str = "numpy",
) -> Any:
    """Return arrays that are in memory once, however many workers of this machine have them.

    A loader calls it in each worker. The first one makes what is shared; the others wait for that, and map it. It is
    gone when the last process that has it ends, however that ends.

    Arrays of numpy cannot be written. A tensor of torch can be: what is written is the worker's own then.

    Args:
        source: a .safetensors or .npy file, which is mapped as it is; or a function that makes arrays, and is called
            in the first worker alone; or arrays that are there already. Arrays are of numpy, or tensors of torch on the
            CPU, in dictionaries, lists and tuples. The function, and threads or processes that it waits for, must not
            share something under a key themselves: share that before
        key: what is the same for the same content, such as "resnet-50 v3"; or a path, for what is made of that file:
            it is made anew when the file has changed. Arrays that are there already need none: they are compared
        framework: what a file's arrays become: "numpy" or "torch"

    Returns:
        The dictionary of a .safetensors file, the array of an .npy file, or what the function returned, of the same
        form.

    Raises:
        PyTritonValidationError: it is nothing that can be shared, or a function without a key; or a function asks for
            something with a key
        FileNotFoundError: there is no such file
        MemoryError: there is not enough memory

    Example:
        >>> def load():                                                        # doctest: +SKIP
        ...     weights = pytriton.shared("model.safetensors", framework="torch")
        ...     with torch.device("meta"):
        ...         model = Net()
        ...     model.load_state_dict(weights, assign=True)
        ...     return Served(model)
        >>> client.register(load, "net", inputs, outputs, factory=True, instances=4)   # doctest: +SKIP
    """
    if framework not in _FRAMEWORKS:
        raise PyTritonValidationError(
            f"pytriton.shared: framework has to be 'numpy' or 'torch', got {framework!r}."
        )
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        return files.load(path, _digest("file", files.digest_of(path)), framework)
    if callable(source):
        if key is None:
            raise PyTritonValidationError(
                "pytriton.shared: a function needs a key, which says what is the same for all workers, such as "
                "key='resnet-50 v3'."
            )
        return _made(_digest_of_key(key), str(key), source)
    if key is not None:
        return _made(_digest_of_key(key), str(key), lambda: source)
    layout = Layout(source)
    content = hashlib.blake2b(digest_size=20)
    for piece in layout.pieces():
        content.update(piece)
    return trees.built(segments.memory(content.hexdigest(), "arrays", layout.pieces))


def _made(digest: str, label: str, make: Callable[[], Any]) -> Any:
    if _making.label is not None:
        raise PyTritonValidationError(
            f"pytriton.shared: the function that makes {_making.label!r} asks for {label!r}. Two workers that begin "
            f"with one of them each would wait for each other for ever: share {label!r} before, and use it in the "
            "function."
        )

    def pieces() -> Iterable[Buffer]:
        _making.label = label
        try:
            return Layout(make()).pieces()
        finally:
            _making.label = None

    return trees.built(segments.memory(digest, label, pieces))


def _digest_of_key(key: str | os.PathLike[str]) -> str:
    if isinstance(key, str):
        return _digest("key", key)
    return _digest("made of", files.digest_of(Path(key).expanduser()))


def _digest(kind: str, text: str) -> str:
    return hashlib.blake2b(
        f"{kind} {text}".encode("utf-8", "surrogatepass"), digest_size=20
    ).hexdigest()
