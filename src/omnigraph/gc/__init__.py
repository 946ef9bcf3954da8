"""Garbage collection: expire old history, mark what is reachable, sweep the rest; recover unfinished jobs."""
