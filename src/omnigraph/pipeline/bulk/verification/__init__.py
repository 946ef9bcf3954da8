"""Verification of staged rows by SQL, and the rows that are rejected."""
