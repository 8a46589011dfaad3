"""The inputs of a batch on their way to the callable: copied out of Triton's memory, gathered, checked for what lacks.

Belongs here: what becomes of inputs before the call; outputs are in worker/outputs/.
"""
