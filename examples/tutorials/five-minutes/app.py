def predict(text: str, top_k: int = 3) -> list[str]:
    """Return the first words of a text."""
    return text.split()[:top_k]
