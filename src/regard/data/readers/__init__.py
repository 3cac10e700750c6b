"""Readers: a file format to records."""
