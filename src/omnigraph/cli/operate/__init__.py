"""Commands that operate a graph or a server."""
