"""Chat: a conversation of several turns with a model."""
