"""Omnigraph: a typed property graph that lives in object storage."""

from omnigraph.graph import Graph, init, open

__all__ = ["Graph", "__version__", "init", "open"]

__version__ = "0.1.0"
