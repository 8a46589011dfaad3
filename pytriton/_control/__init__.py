"""A client's connection to a daemon, on this machine or another one: requests, progress, answers. Private."""
