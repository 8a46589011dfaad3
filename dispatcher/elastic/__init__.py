"""Elastic models: how many instances each should have, and which of them the machine has room for.

Belongs here: decisions as pure functions of figures; whoever calls takes the figures and carries out what is decided.
May import: settings, and `pytriton._protocol`.
"""
