"""Rules, alerts and the dashboard use existing metrics; promtool runs the rules' own tests."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytriton.dispatcher.telemetry.metrics.daemon_metrics import FAMILIES

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"
FILES = ("rules.yml", "alerts.yml", "rules_test.yml", "dashboard.json")
PROMTOOL = shutil.which("promtool")
_NAME = re.compile(r"\bpytriton_(\w+)")
_SUFFIX = re.compile(r"_(bucket|count|sum)$")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool (Debian's package prometheus) is not here"
)


def reported_names() -> set[str]:
    return {
        f"{family.name}_total" if family.kind == "counter" else family.name for family in FAMILIES
    }


@pytest.mark.parametrize("file", FILES)
def test_queried_metrics_exist(file: str) -> None:
    asked = set(_NAME.findall((MONITORING / file).read_text(encoding="utf-8")))
    assert len(asked) > 5
    assert {_SUFFIX.sub("", name) for name in asked} <= reported_names()


def test_every_alert_has_a_test() -> None:
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    tests = (MONITORING / "rules_test.yml").read_text(encoding="utf-8")
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tests))
    assert len(alerts) > 10
    assert set(alerts) == tested


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "rules.yml", "alerts.yml"), ("test", "rules", "rules_test.yml")],
)
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, *arguments]
    run = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
