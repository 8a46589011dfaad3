"""How the whole suite runs: what its files cost, what it outlives, what runs a second time."""
