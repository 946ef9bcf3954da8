"""Spark as a place where tasks run: sessions, their Java, and how errors and answers come back."""
