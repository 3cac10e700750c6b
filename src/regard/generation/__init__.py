"""Generation for one batch of ids: decode sessions, samplers, beam search, speculative decoding, constraints."""
