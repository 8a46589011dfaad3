"""Foundations of the dispatcher: child processes, signals, ports, log files, states.

Belongs here: code that knows nothing of models, tritonserver or workers. May import: the settings.
"""
