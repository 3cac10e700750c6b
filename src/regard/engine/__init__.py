"""Continuous batching: many generation requests at once over one model."""
