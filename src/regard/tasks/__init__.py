"""Objectives: what is asked of a model, as named parts of (sum, count, weight)."""

from regard.tasks.next_token import NextToken
from regard.tasks.objective import Objective, Part, whole

__all__ = ["NextToken", "Objective", "Part", "whole"]
