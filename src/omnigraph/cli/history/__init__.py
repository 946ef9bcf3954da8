"""Commands for branches, commits, changes and tags."""
