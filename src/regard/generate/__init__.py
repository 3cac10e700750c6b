"""Text from models: filters on logits, sessions that own a cache, and the model that speaks."""
