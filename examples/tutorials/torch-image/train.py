"""Train a small network on handwritten digits, and write it to digits.pt and two images to PNG files."""

import numpy as np
import torch
from network import Network
from PIL import Image
from sklearn.datasets import load_digits

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
labels = torch.tensor(digits.target)
network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(60):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(network(images[:1500]), labels[:1500]).backward()
    optimizer.step()
right = network(images[1500:]).argmax(1) == labels[1500:]
torch.save(network.state_dict(), "digits.pt")
for number in (1500, 1501):
    Image.fromarray(np.uint8(digits.images[number] * 15)).resize((96, 96)).save(f"{number}.png")
print(
    f"accuracy {right.float().mean():.0%}; 1500.png is a {labels[1500]}, 1501.png a {labels[1501]}"
)
