"""Omnigraph: a typed property graph that lives in object storage."""

from omnigraph.graph import Graph, init, open
from omnigraph.manifest.settings import Settings
from omnigraph.remote import connect

__all__ = ["Graph", "Settings", "__version__", "connect", "init", "open"]

__version__ = "0.1.0"
