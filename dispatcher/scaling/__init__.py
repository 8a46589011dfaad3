"""Scaling: the autoscaler and the memory budget, which change models by themselves.

Each has its rules as pure functions (`policy`, `memory_policy`), and a loop that measures and carries them out
(`autoscaler`, `memory_budget`). The rules import nothing of the dispatcher; the loops may import telemetry and the
packages below it.
"""
