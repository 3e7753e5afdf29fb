"""Mutants of leases with names: locks, and the terms of the leader."""

from __future__ import annotations

from mutants_kind import Mutant

SQLITE = "tests/backends/sqlite/test_sqlite_store.py::TestSqlite::"
S = "src/mainspring/"

LOCK_MUTANTS = (
    Mutant(
        "lock-trust-from-the-answer",
        "a lock or a leader's term is trusted from the answer on, not from its request on",
        S + "engine/locks/lease_term.py",
        "        self._trusted_until = sent + int(asked * LEASE_TRUST_RATIO)",
        "        self._trusted_until = self._clock.boot() + int(asked * LEASE_TRUST_RATIO)",
        ("tests/proof/test_elections.py::test_at_most_one_process_trusts_its_term",),
    ),
    Mutant(
        "lock-without-a-clock",
        "a lock counts as held until the store answers that it is lost",
        S + "engine/locks/lease_term.py",
        "return self.token is not None and self._clock.boot() < self._trusted_until",
        "return self.token is not None",
        ("tests/proof/test_elections.py::test_at_most_one_process_trusts_its_term",),
    ),
    Mutant(
        "lease-epoch-stays",
        "a new term has the token of the last term (SQLite)",
        S + "backends/sqlite/leases.py",
        "(1 if old is None else old.epoch + 1, data)",
        "(1 if old is None else old.epoch, data)",
        (SQLITE + "test_each_term_gets_the_next_epoch_however_the_last_one_ended",),
    ),
    Mutant(
        "lease-renewed-by-anybody",
        "a term is renewed by its number alone, without its owner (SQLite)",
        S + "backends/sqlite/leases.py",
        "not live or (old.owner, old.epoch) != (owner, epoch)",
        "not live or old.epoch != epoch",
        (SQLITE + "test_a_refused_take_changes_nothing",),
    ),
    Mutant(
        "lease-released-by-anybody",
        "a term is ended by a process that does not own it (SQLite)",
        S + "backends/sqlite/leases.py",
        "WHERE name = ? AND owner = ? AND epoch = ? AND live = 1",
        "WHERE name = ? AND ?2 <> '' AND epoch = ? AND live = 1",
        (SQLITE + "test_a_refused_take_changes_nothing",),
    ),
    Mutant(
        "keeper-without-a-leader",
        "every instance does the housekeeping",
        S + "engine/keeper.py",
        "        if not self._leader.leads:\n            self._steady",
        "        if self.poll < 0:\n            self._steady",
        ("tests/engine/test_leader.py::test_one_of_three_leads_and_only_that_one_keeps_house",),
    ),
    Mutant(
        "lost-lock-goes-on",
        "the block of a lost lock is not stopped",
        S + "app/locks.py",
        "            self._task.cancel()\n",
        "            pass\n",
        ("tests/engine/locks/test_locks_in_time.py::test_a_store_that_never_answers_loses_the_lock_in_time",),
    ),
)
