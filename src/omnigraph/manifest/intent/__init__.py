"""Intents of long writes: their value, their storage, and the check before each put."""
