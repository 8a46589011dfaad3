"""What tests share: running daemons, waiting for conditions, looking for what was left behind."""
