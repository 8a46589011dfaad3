"""The Helm chart, rendered by Helm's own library if that is installed (the extra `charts`)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "pytriton-daemon"
HOW = "pip install 'pytriton-daemon[charts]' (Helm and Kubernetes' schemas: 100 MB)"
Object = dict[str, Any]


def require_helm() -> Any:
    """Return the module of Helm's library; skip the test if it is not installed."""
    return pytest.importorskip("helm_python", reason=HOW)


@functools.cache
def load_chart() -> Any:
    """Return the chart as loaded by Helm; it cannot be changed."""
    return require_helm().Chart.load(CHART)


def render(values: Object, name: str = "models", namespace: str = "serving") -> list[Object]:
    """Return the objects that an installation with these values would create.

    Raises:
        helm_python.HelmError: the schema, or a check of the chart, refuses the values.
    """
    texts = load_chart().render(values, name=name, namespace=namespace)
    manifests = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    return [one for text in manifests for one in yaml.safe_load_all(text) if one]


def only(objects: list[Object], kind: str, name: str = "") -> Object:
    """Return the only object of a kind, or the one with this name."""
    found = [one for one in objects if one["kind"] == kind]
    found = [one for one in found if not name or one["metadata"]["name"] == name]
    assert len(found) == 1, [(one["kind"], one["metadata"]["name"]) for one in objects]
    return found[0]


def pod_of(objects: list[Object]) -> Object:
    """Return the pod's specification."""
    workload = next(one for one in objects if one["kind"] in ("Deployment", "StatefulSet"))
    spec: Object = workload["spec"]["template"]["spec"]
    return spec
