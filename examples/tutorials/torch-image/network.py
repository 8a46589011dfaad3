"""The network, for training and for serving."""

import torch
from torch import nn


class Network(nn.Sequential):
    """Images (n, 1, 8, 8) of 0 to 1 to scores (n, 10)."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        )  # fmt: skip


def load(path: str, device: str) -> Network:
    """Return the trained network on a device."""
    network = Network()
    network.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    return network.to(device).eval()
