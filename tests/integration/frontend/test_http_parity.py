"""The native frontend and NVIDIA's respond alike over HTTP, except for the decisions in frontend_decisions.py."""

from __future__ import annotations

import pytest
from support.frontend.corpus import corpus
from support.frontend.decisions import DECISIONS, is_same, is_the_clients_fault
from support.frontend.frontend_pair import Frontend
from support.frontend.http_client import answer
from support.frontend.requests import Ask

CORPUS = list(corpus())


@pytest.mark.parametrize("ask", CORPUS, ids=[ask.name for ask in CORPUS])
def test_both_frontends_respond_alike(frontends: tuple[Frontend, Frontend], ask: Ask) -> None:
    decision = next((one for one in DECISIONS if one.applies(ask.name)), None)
    nvidia = None if decision and decision.nvidia is None else answer(frontends[0], ask)
    native = answer(frontends[1], ask)
    if nvidia and is_same(nvidia, native):
        return
    if nvidia and is_the_clients_fault(nvidia, native):
        return
    assert decision, f"NVIDIA's: {nvidia}\nnative: {native}"
    assert decision.holds(nvidia, native), f"NVIDIA's: {nvidia}\nnative: {native}\n{decision}"


@pytest.mark.parametrize("decision", DECISIONS, ids=[decision.names for decision in DECISIONS])
def test_every_decision_applies_to_a_request(decision: object) -> None:
    assert any(one is decision and one.applies(ask.name) for one in DECISIONS for ask in CORPUS)
