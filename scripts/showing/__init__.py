"""Shows with a real daemon what elastic models do: how fast they wake, and what memory they take."""
