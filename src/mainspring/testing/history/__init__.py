"""The history checker: compares the fires that were owed with a store's rows and events and with the handlers' log."""

from mainspring.testing.history.checker import check, read_history
from mainspring.testing.history.report import INVARIANTS, VIOLATION_KINDS, Call, History, Report, Violation

#: The kinds of violations under the name that this package exports.
KINDS = VIOLATION_KINDS

__all__ = ["INVARIANTS", "KINDS", "Call", "History", "Report", "Violation", "check", "read_history"]
