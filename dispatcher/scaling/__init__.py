"""Scaling: the daemon's automatic changes of models, according to their load and the available memory.

Belongs here: code that measures, and carries out the decisions of `elastic`. May import: telemetry and the packages
below it.
"""
