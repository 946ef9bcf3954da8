"""Loads in this process: input, parsing, modes, quarantine.

load.py          the load as one commit
load_options.py  the options of a load as one value
input/           sources, splits, input records
parse/           splits -> typed rows
load_rows.py     records -> rows of the schema's types
load_modes.py    append, merge, overwrite as a delta
quarantine.py    rejected rows in a file
"""
