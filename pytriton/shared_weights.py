"""`shared`: weights of which all workers of a machine share a single copy."""

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


class _Creation(threading.local):
    """The key of the data that this thread is currently creating."""

    label: str | None = None


_creation = _Creation()


def shared(
    source: Any,
    *,
    key: str | os.PathLike[str] | None = None,
    framework: str = "numpy",
) -> Any:
    """Return arrays that all workers of this machine share, so that there is only one copy in memory.

    Call this in the code that loads the model, in each worker. The first worker creates the shared data; the others
    wait for it and map it. The memory is freed when the last process that uses it has exited, even after a crash.

    NumPy arrays are read-only. Torch tensors can be written to; modified pages become private to the worker.

    Args:
        source: a .safetensors or .npy file, which is mapped directly; a function that creates arrays, which is called
            only in the first worker; or existing arrays. Arrays are numpy arrays, or torch tensors on the CPU, in
            dictionaries, lists and tuples. The function, and any thread or process it waits for, must not call
            `shared` with a key
        key: identifier of the content, such as "resnet-50 v3". Or the path of a file from which the content is
            derived: the content is created again when the file has changed. Existing arrays need no key, because they
            are identified by their content
        framework: "numpy" or "torch": the type of the arrays that are read from a file

    Returns:
        The dict of arrays in a .safetensors file, the array in a .npy file, or a shared copy of the arrays from
            `source`.

    Raises:
        PyTritonValidationError: the source cannot be shared, it is a function and no key is given, or the function
            itself calls `shared` with a key
        FileNotFoundError: the file does not exist
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
            f"pytriton.shared: framework must be 'numpy' or 'torch', got {framework!r}."
        )
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        return files.load(path, _digest("file", files.digest_of(path)), framework)
    if callable(source):
        if key is None:
            raise PyTritonValidationError(
                "pytriton.shared: a function requires a key that identifies the shared data, such as "
                "key='resnet-50 v3'."
            )
        return _share(_digest_of_key(key), str(key), source)
    if key is not None:
        return _share(_digest_of_key(key), str(key), lambda: source)
    layout = Layout(source)
    content = hashlib.blake2b(digest_size=20)
    for piece in layout.pieces():
        content.update(piece)
    return trees.deserialize(segments.memory(content.hexdigest(), "arrays", layout.pieces))


def _share(digest: str, label: str, make: Callable[[], Any]) -> Any:
    if _creation.label is not None:
        raise PyTritonValidationError(
            f"pytriton.shared: the function that creates {_creation.label!r} itself shares {label!r}. Two workers would "
            f"deadlock if each started with a different one of the two. Share {label!r} first, and use it in the function."
        )

    def pieces() -> Iterable[Buffer]:
        _creation.label = label
        try:
            return Layout(make()).pieces()
        finally:
            _creation.label = None

    return trees.deserialize(segments.memory(digest, label, pieces))


def _digest_of_key(key: str | os.PathLike[str]) -> str:
    if isinstance(key, str):
        return _digest("key", key)
    return _digest("made of", files.digest_of(Path(key).expanduser()))


def _digest(kind: str, text: str) -> str:
    return hashlib.blake2b(
        f"{kind} {text}".encode("utf-8", "surrogatepass"), digest_size=20
    ).hexdigest()
