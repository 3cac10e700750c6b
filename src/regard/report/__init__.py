"""The report of a run: report.html, one page with curves, samples and attention maps, opened without a server."""

from regard.report.page import write_report

__all__ = ["write_report"]
