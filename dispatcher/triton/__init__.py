"""The tritonserver that the daemon owns: its start, its processes, its readiness, its models, and what it is asked.

Belongs here: what talks to tritonserver or prepares it; front.py shows how the modules hang together. May import:
install, control, base, settings.
"""
