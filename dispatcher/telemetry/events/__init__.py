"""Events: every decision of the daemon, with its time, reason, numbers and actor.

Belongs here: the kinds of events, and their destinations (log, event log, webhooks). May import: runtime, settings.
Code that makes decisions gets an `Events` through its constructor, and emits events with it.
"""
