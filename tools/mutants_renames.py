"""Mutants of renames: who gets a name, which name is free afterwards, and what stays with the schedule."""

from __future__ import annotations

from mutants_kind import Mutant

S = "src/mainspring/"
MEMORY = "tests/backends/memory/test_memory_store.py::TestMemory::"
SQLITE = "tests/backends/sqlite/test_sqlite_store.py::TestSqlite::"
VALKEY = "tests/backends/redis/test_redis_store.py::TestValkey::"
TESTS = "tests/app/test_renames.py::"
TAKEN = "test_a_rename_is_refused_if_the_name_is_taken"
FREED = "test_a_rename_frees_the_old_name"

RENAME_MUTANTS = (
    Mutant(
        "rename-to-a-taken-name-memory",
        "two schedules may have one name (memory)",
        S + "backends/memory/apply.py",
        "return guard.old_name is None or new is None or (new.ns, new.name) not in self._names, row",
        "return True, row",
        (MEMORY + TAKEN,),
    ),
    Mutant(
        "rename-to-a-taken-name-redis",
        "two schedules may have one name (Redis)",
        S + "backends/redis/lua/apply.lua",
        "if expected[5] and hget('names', expected[5]) then",
        "if false then",
        (VALKEY + TAKEN,),
    ),
    Mutant(
        "rename-keeps-the-old-name-memory",
        "the old name of a schedule is never free (memory)",
        S + "backends/memory/tables.py",
        "        for row in (old, new):\n",
        "        for row in (new,):\n",
        (MEMORY + FREED,),
    ),
    Mutant(
        "rename-keeps-the-old-name-redis",
        "the old name of a schedule is never free (Redis)",
        S + "backends/redis/lua/common.lua",
        "  if old_name and old_name ~= name and",
        "  if false and",
        (VALKEY + FREED,),
    ),
    Mutant(
        "rename-frees-no-name-in-a-batch",
        "a batch does not know that a rename frees the old name",
        S + "backends/change_batches.py",
        "names = (schedule.name,) if old_name is None else (schedule.name, old_name)",
        "names = (schedule.name,)",
        (SQLITE + "test_names_pass_on_within_one_batch_in_its_order",),
    ),
    Mutant(
        "rename-of-declared",
        "a schedule is renamed which a program would create again",
        S + "service/schedule_names.py",
        '    if schedule.app or schedule.origin == "code":\n',
        "    if schedule.app:\n",
        (TESTS + "test_a_schedule_that_code_took_over_is_renamed_in_the_code",),
    ),
    Mutant(
        "rename-delays-a-fixed-delay",
        "a rename moves the next fire of a fixed delay",
        S + "rules/schedule_commands.py",
        "    elif only_renamed and is_fixed_delay(spec):\n",
        '    elif name == "" and is_fixed_delay(spec):\n',
        (TESTS + "test_a_fixed_delay_keeps_its_next_fire_and_a_finished_schedule_stays_finished",),
    ),
    Mutant(
        "rename-shares-header-values",
        "header values of a renamed schedule are those of the one that gets its old name",
        S + "service/commands.py",
        "return want if before is None else await move_agent_secrets(self._vault(), want, before)",
        "return want",
        (TESTS + "test_header_values_belong_to_the_new_name",),
    ),
)
