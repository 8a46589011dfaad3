"""The options, the tables and the balancer of the fleet's commands, which alone use them."""
