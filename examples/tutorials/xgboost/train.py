"""Train trees that distinguish malignant from benign tumours, and write them to tumours.ubj."""

import xgboost
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

values, labels = load_breast_cancer(return_X_y=True)
seen, unseen, seen_labels, unseen_labels = train_test_split(values, labels, random_state=0)
trees = xgboost.train(
    {"objective": "binary:logistic", "max_depth": 3, "nthread": 1},
    xgboost.DMatrix(seen, seen_labels),
    num_boost_round=30,
)
trees.save_model("tumours.ubj")
right = (trees.predict(xgboost.DMatrix(unseen)) > 0.5) == unseen_labels
print(f"accuracy {right.mean():.1%}")
