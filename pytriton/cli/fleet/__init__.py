"""What the commands of a fleet have for themselves: their options, their tables, and the balancer's loop."""
