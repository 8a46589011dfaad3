"""Scaling: the daemon's own changes of models, by their load and by the memory that the machine has.

Belongs here: what measures, and carries out what elastic decides. May import: figures and what is below it.
"""
