"""Vectors for texts, in batches: `embed`."""
