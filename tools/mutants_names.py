"""Mutants of names: which of two programs uses the name of a task or schedule."""

from __future__ import annotations

from mutants_kind import Mutant

FILE = "src/mainspring/service/declarations.py"
TESTS = "tests/app/test_one_name_two_programs.py::"

NAME_MUTANTS = (
    Mutant(
        "name-still-offered",
        "a program claims runs of a task whose name another program holds",
        FILE,
        'if kind == "task" and name in self._handlers:',
        'if kind == "task" and name in self._withheld:',
        (TESTS + "test_the_later_program_applies_neither_schedule_nor_task",),
    ),
    Mutant(
        "name-decided-by-each-alone",
        "two programs decide about their names at the same time",
        FILE,
        "name = DECLARING_PREFIX + escape_name_part(self._settings.namespace)",
        "name = DECLARING_PREFIX + escape_name_part(self._owner)",
        (TESTS + "test_of_two_programs_that_start_at_once_exactly_one_holds_the_name",),
    ),
    Mutant(
        "name-taken-from-a-restart",
        "a name is taken over as soon as its program stops",
        FILE,
        "recent=lease.live or lease.renewed_at > gone_before,",
        "recent=lease.live,",
        (
            TESTS + "test_a_program_that_restarts_keeps_its_names",
            TESTS + "test_it_takes_over_when_the_other_has_been_gone_for_a_lease",
        ),
    ),
)
