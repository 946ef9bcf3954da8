"""Tables as a query sees them: in memory or fetched on demand, and the cache of what was derived from them."""
