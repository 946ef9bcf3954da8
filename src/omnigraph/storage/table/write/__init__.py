"""Writing a table: each change is a new detached version."""
