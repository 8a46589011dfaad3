"""A text in, its most likely labels out.

$ pytriton-daemon serve text_labels.py
$ pytriton-daemon call label text="a wonderful film" top_k=1
$ curl 127.0.0.1:8000/label -d '{"text": "a wonderful film"}'
"""

from dataclasses import dataclass

WORDS = {"positive": {"good", "wonderful", "best"}, "negative": {"bad", "boring", "worst"}}


@dataclass
class Label:
    name: str
    score: float


def label(text: str, top_k: int = 2) -> list[Label]:
    """Label a text.

    Args:
        text: what to label
        top_k: maximum number of labels, the most likely one first
    """
    words = text.lower().split()
    counts = {name: 1 + sum(word in known for word in words) for name, known in WORDS.items()}
    total = sum(counts.values())
    labels = [Label(name, count / total) for name, count in counts.items()]
    return sorted(labels, key=lambda one: one.score, reverse=True)[:top_k]
