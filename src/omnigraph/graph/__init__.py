"""The public façade: `init`, `open` and `Graph`."""
