"""A client's connection with a daemon: questions, answers, progress, also from another machine. Private."""
