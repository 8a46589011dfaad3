"""The outputs of a callable on their way to the proxy: checked, written, lent or copied.

Holds the processing of outputs after the call; inputs are in worker/inputs/.
"""
