"""Shows with a real daemon what elastic models do: how fast they resume, and what memory they take."""
