"""The event log: every decision of the daemon is an event with its time, reason, numbers and actor.

Belongs here: the kinds of events and where they go. May import: runtime, settings. Code that makes decisions receives an
`Events` through its constructor and emits them with it.
"""
