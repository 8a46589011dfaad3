"""The inputs of a batch on their way to the callable: copied from Triton's memory, gathered, checked for completeness.

Holds the processing of inputs before the call; outputs are in worker/outputs/.
"""
