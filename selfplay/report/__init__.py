"""A run's page, and a page that compares runs: one HTML file each, from the journals, that needs nothing else."""

from selfplay.report.compare import compared
from selfplay.report.page import comparison_page, exam_page, run_page
from selfplay.report.reading import ReportError
from selfplay.report.summary import summarised

__all__ = ["ReportError", "compared", "comparison_page", "exam_page", "run_page", "summarised"]
