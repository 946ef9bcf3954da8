"""Parsing splits of input into typed rows."""
