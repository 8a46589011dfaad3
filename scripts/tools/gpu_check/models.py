"""The models of the rows. Workers import this module, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_check import cuda

Infer = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class Holder:
    """Holds memory, on the GPU if the worker sees one, and answers with the worker's process and its GPUs."""

    def __init__(self, size: int, *, gpu: bool) -> None:
        self._memory: Any = cuda.allocate(size) if gpu else np.ones(size, np.uint8)
        count, uuid = 0, bytes(16)
        try:
            count = cuda.device_count()
            uuid = bytes.fromhex(str(cuda.describe()["uuid"])) if count else uuid
        except cuda.CudaError:
            if gpu:
                raise
        self._said = {
            "pid": np.array([os.getpid()], np.int64),
            "gpus": np.array([count], np.int64),
            "uuid": np.frombuffer(uuid, np.uint8),
        }

    def __call__(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer each request."""
        return [self._said for _ in requests]


def holder(size: int, *, gpu: bool) -> Callable[[], Infer]:
    """Return a factory of a `Holder`."""
    return lambda: Holder(size, gpu=gpu)


def small_net() -> Any:
    """Return a small torch network, which is the same in each process."""
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)
    ).eval()


def served(make: Callable[[], Any], device: str) -> Callable[[], Infer]:
    """Return a factory of a callable that concatenates requests and runs a network on a device."""

    def load() -> Infer:
        import torch

        net = make().to(device)

        def infer(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
            sizes = [len(one["x"]) for one in requests]
            with torch.inference_mode():
                x = torch.from_numpy(np.concatenate([one["x"] for one in requests])).to(device)
                y = net(x).cpu().numpy()
            parts = np.split(y, np.cumsum(sizes)[:-1])
            return [
                {"y": part, "pid": np.full((len(part), 1), os.getpid(), np.int64)} for part in parts
            ]

        return infer

    return load


def eater(device: str) -> Callable[[], Infer]:
    """Return a factory of a callable that allocates as many bytes on the GPU as a request says."""

    def load() -> Infer:
        import torch

        held = torch.ones(1 << 20, device=device)

        def infer(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
            answers = []
            for one in requests:
                torch.empty(int(one["x"].reshape(-1)[0]), dtype=torch.uint8, device=device)
                total = held.sum().item()
                answers.append(
                    {"y": np.array([total], np.float64), "pid": np.array([os.getpid()], np.int64)}
                )
            return answers

        return infer

    return load


# ── networks of the size of well-known ones, with random weights ──────────────────────────────────


def resnet() -> Any:
    """Return a network with the layers of ResNet-50: 25.6 million parameters, images as bytes."""
    import torch
    from torch import nn

    def block(inputs: int, width: int, stride: int) -> Any:
        main = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        same = inputs == 4 * width and stride == 1
        side = nn.Identity() if same else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
        return main, side

    class Residual(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            self.main, self.side = block(inputs, width, stride)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.main(x) + self.side(x))

    class Scaled(nn.Module):  # type: ignore[misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            return x.float() / 255

    torch.manual_seed(7)
    layers: list[Any] = [
        Scaled(),
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Residual(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)
    ).eval()


def minilm() -> Any:
    """Return a network of the size of all-MiniLM-L6-v2: 22 million parameters, sentences of 128 tokens."""
    import torch
    from torch import nn

    class Encoder(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30522, 384), nn.Embedding(512, 384)
            layer = nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True, activation="gelu")
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

        def forward(self, ids: Any) -> Any:
            places = torch.arange(ids.shape[1], device=ids.device)
            return self.layers(self.words(ids.long()) + self.places(places)).mean(1)

    torch.manual_seed(7)
    return Encoder().eval()
