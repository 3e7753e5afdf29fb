"""Mutants of rewinds: what was planned ahead of the clock is taken back, and no fire runs twice."""

from __future__ import annotations

from mutants_kind import Mutant

REWIND = "tests/engine/test_rewind.py::"
AGAIN = REWIND + "test_a_rewound_schedule_fires_again_and_runs_no_fire_twice"
S = "src/mainspring/"

REWIND_MUTANTS = (
    Mutant(
        "rewind-forgets-runs",
        "planning does not look for the runs that the fires of a rewound schedule have",
        S + "engine/known_fires.py",
        "if schedule.rewound is None or schedule.cursor >= schedule.rewound:",
        "if schedule.rewound is None or schedule.cursor < schedule.rewound:",
        (AGAIN,),
    ),
    Mutant(
        "rewind-keeps-spans",
        "a rewind moves the cursor and leaves the spans beyond it",
        S + "rules/schedule_draft.py",
        "            self.cut_spans = event.to\n",
        "            self.cut_spans = None\n",
        (AGAIN,),
    ),
    Mutant(
        "rewind-counts-runs-twice",
        "runs that count again have counted against max_runs before",
        S + "rules/rewind.py",
        "schedule.fired - uncounted - runs",
        "schedule.fired - uncounted",
        (REWIND + "test_runs_that_count_again_count_once_against_max_runs",),
    ),
    Mutant(
        "rewind-keeps-the-anchor",
        "an interval that was made under a wrong clock still counts from the future",
        S + "rules/rewind.py",
        "    anchor = now if schedule.anchor > max(now, schedule.spec.start or now) else schedule.anchor",
        "    anchor = schedule.anchor",
        (REWIND + "test_a_schedule_that_was_made_under_a_wrong_clock_counts_from_the_rewind",),
    ),
)
