"""The tritonserver that the daemon owns: its start, its processes, its readiness, its models, and what it is asked.

Belongs here: what talks to tritonserver or prepares it; frontend.py shows how the modules hang together, and frontends/ has
the programs that can be started as it. May import: install, control, base, settings.
"""
