"""A run's folder as one offline HTML page, and as a few lines for the terminal."""

from coachrl.report.page import headline, write_report

__all__ = ["headline", "write_report"]
