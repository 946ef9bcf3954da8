"""Building index segments, and their metadata."""
