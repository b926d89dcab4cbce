"""Exams: members of a population answer public benchmarks in one batch, and are graded outside the process that wrote."""

from selfplay.exams.problem import Answer, ExamError, Question, Suite
from selfplay.exams.suites import suite, suites

__all__ = ["Answer", "ExamError", "Question", "Suite", "suite", "suites"]
