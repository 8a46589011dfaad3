"""A client's connection with a daemon: requests, answers, progress, also from another machine. Private."""
