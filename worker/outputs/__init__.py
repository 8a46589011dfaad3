"""From what a callable returned to what the proxy reads: checked, laid down, lent or copied.

Belongs here: the outputs of calls; inputs are in worker/inputs.py.
"""
