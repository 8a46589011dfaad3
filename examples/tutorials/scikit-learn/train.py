"""Train a classifier of handwritten digits and write it to digits.joblib."""

import joblib
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

images, labels = load_digits(return_X_y=True)
seen, unseen, seen_labels, unseen_labels = train_test_split(images / 16, labels, random_state=0)
classifier = LogisticRegression(max_iter=200).fit(seen, seen_labels)
joblib.dump(classifier, "digits.joblib")
print(f"accuracy {classifier.score(unseen, unseen_labels):.1%}")
