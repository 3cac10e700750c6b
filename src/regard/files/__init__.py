"""Files as bytes: atomic writes, locks, the cache directory, manifests, compression, size limits; no torch."""
