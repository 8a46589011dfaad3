"""The report of a run: figures, targets."""
