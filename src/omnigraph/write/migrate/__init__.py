"""Schema changes applied to the stored rows."""
