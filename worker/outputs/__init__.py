"""The outputs of a callable on their way to the proxy: checked, laid down, lent or copied.

Belongs here: the outputs of calls; inputs are in worker/inputs/.
"""
