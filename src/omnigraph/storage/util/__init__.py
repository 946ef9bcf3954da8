"""Caches, threads, task runners: what storage is built with."""
