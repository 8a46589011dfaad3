"""What the service needs: weights, and an image to send."""

import numpy as np
from PIL import Image

np.save("weights.npy", np.full(64, 1 / 64, np.float32))
Image.new("RGB", (32, 32), (255, 255, 255)).save("white.png")
