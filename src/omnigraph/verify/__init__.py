"""Verification: everything that the graph refers to exists, reads back, and agrees with the rest."""
