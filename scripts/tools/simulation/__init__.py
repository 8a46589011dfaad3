"""Plays load shapes against the daemon's own policy of autoscaling, on a virtual clock."""
