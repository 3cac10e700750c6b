"""Optimizers, learning-rate schedules, the EMA of weights, and the step guard."""
