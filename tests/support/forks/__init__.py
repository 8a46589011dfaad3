"""Processes that fork: the fork server with its workers, and the stage that it plays on."""
