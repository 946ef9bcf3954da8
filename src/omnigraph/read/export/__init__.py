"""Export into one file."""
