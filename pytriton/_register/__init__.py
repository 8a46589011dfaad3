"""The first half of `register`: it packs the callable and its surroundings into a message. Private."""
