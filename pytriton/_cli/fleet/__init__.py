"""The options, the tables and the balancer of the fleet's commands."""
