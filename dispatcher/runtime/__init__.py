"""Foundations of the dispatcher: child processes, signals, ports, log files, states.

Belongs here: code that does not depend on models, tritonserver or workers. May import: the settings.
"""
