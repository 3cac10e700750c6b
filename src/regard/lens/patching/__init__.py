"""Patching: activations of one run put into another, and what that changes."""
