"""Fold, compact, index, cleanup, recovery, verification: what keeps a graph well, and never changes what it says."""
