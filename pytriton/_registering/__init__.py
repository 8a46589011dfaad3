"""What `register` does before its message goes out: the callable and its surroundings are packed. Private."""
