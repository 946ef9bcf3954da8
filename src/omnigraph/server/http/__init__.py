"""HTTP: middleware, admission, bodies, streams, errors."""
