"""Running read queries in-process."""
