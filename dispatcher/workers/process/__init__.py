"""One worker: its slot, its process or its registrant's thread, its start, its load, its limits.

Belongs here: what is true of a worker whatever pool it is in. May import: triton and what is below it; nothing else
of workers.
"""
