"""Scaling: the autoscaler and the memory budget, which change models on the daemon's own initiative.

The rules of both are pure functions (`policy`, `memory_policy`). Loops measure and apply the rules
(`autoscaler`, `memory_budget`). The rules import nothing of the dispatcher; the loops may import telemetry and the
packages below it.
"""
