"""A run as one page to look at and to show: report.html, whole in itself, opened without a server."""

from regard.report.page import write

__all__ = ["write"]
