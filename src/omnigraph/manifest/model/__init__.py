"""Manifests as values: their JSON, their keys, their ancestry."""
