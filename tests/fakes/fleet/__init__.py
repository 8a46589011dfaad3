"""Stand-ins for a fleet: its nodes, and Ray."""
