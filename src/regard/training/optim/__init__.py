"""Optimizers, schedules, the EMA of weights, and the guard of a step."""
