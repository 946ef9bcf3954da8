"""Rendering of results as text."""
