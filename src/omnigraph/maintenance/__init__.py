"""Maintenance changes how tables are stored, never what the graph says: fold, compact, index."""
