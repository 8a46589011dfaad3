"""Elastic models: how many instances each model should have, and which of them fit on the machine.

Belongs here: decisions as pure functions of measurements. The callers measure and carry out the decisions. May import:
settings, and `pytriton._protocol`.
"""
