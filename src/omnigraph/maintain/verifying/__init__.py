"""Verify: whether everything that the graph refers to is there, reads back, and agrees with the rest."""
