"""The handler as TorchServe has it. It is packed with torch-model-archiver."""

import io
import os

import numpy as np
from PIL import Image
from ts.torch_handler.base_handler import BaseHandler

NAMES = ["dark", "bright"]


class Brightness(BaseHandler):
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.weights = np.load(os.path.join(folder, "weights.npy"))
        self.initialized = True

    def preprocess(self, data):
        images = []
        for row in data:
            content = row.get("data") or row.get("body")
            image = Image.open(io.BytesIO(content)).convert("L").resize((8, 8))
            images.append(np.asarray(image, np.float32).ravel() / 255)
        return np.stack(images)

    def inference(self, images):
        return images @ self.weights

    def postprocess(self, scores):
        return [{"label": NAMES[int(score > 0.5)], "score": float(score)} for score in scores]
