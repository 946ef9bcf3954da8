"""Bulk load: splits are staged by tasks, verified by SQL, and published as one commit."""
