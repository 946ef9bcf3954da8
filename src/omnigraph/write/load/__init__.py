"""Loads in this process: input, parsing, modes, quarantine."""
