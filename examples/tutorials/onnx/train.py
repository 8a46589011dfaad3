"""Train a classifier of handwritten digits and export it to a model repository, as an ONNX file."""

from pathlib import Path

from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

images, labels = load_digits(return_X_y=True)
seen, unseen, seen_labels, unseen_labels = train_test_split(images / 16, labels, random_state=0)
classifier = LogisticRegression(max_iter=200).fit(seen, seen_labels)
exported = to_onnx(
    classifier,
    initial_types=[("image", FloatTensorType([None, 64]))],  # None: any number of images
    options={"zipmap": False},  # probabilities as a tensor, not as a list of dictionaries
    target_opset=17,
)
file = Path("models/digits/1/model.onnx")
file.parent.mkdir(parents=True, exist_ok=True)
file.write_bytes(exported.SerializeToString())
print(f"accuracy {classifier.score(unseen, unseen_labels):.1%}; {file}")
