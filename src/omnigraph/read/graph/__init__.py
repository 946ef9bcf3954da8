"""Adjacency of edges as compressed arrays."""
