"""Tritonserver as the daemon runs it: start, processes, readiness, models and administration.

Belongs here: code that talks to tritonserver or prepares it. frontend.py shows how the modules fit together; frontends/
has the programs that can be started as tritonserver. May import: install, control, base, settings.
"""
