"""Features: neurons, linear probes, words in context and steering vectors."""
