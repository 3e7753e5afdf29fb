"""Which tests of the store contract `make test` runs over a transport: one for each verb, and those that use several
connections, wait for a hint, or carry much data. `make chaos` runs the whole contract there.

A transport (TLS, Sentinel, Cluster, PgBouncer) changes how statements reach the server, not what they mean: what a
verb answers is shown by the whole contract over a plain connection.
"""

from __future__ import annotations

#: Set by `make chaos`: the whole contract on every transport.
WHOLE_CONTRACT = "MAINSPRING_WHOLE_CONTRACT"

#: Contract classes of one server that is reached in another way.
TRANSPORTS = frozenset({"TestThroughPgBouncer", "TestCluster", "TestSentinel", "TestTls"})

TRANSPORT_TESTS = frozenset(
    {
        # apply: each fast path, the general one, a refusal, a repeated change
        "test_empty_batch",
        "test_enqueue_is_accepted_and_stamped",
        "test_enqueue_repeated",
        "test_schedule_created",
        "test_plan",
        "test_plan_repeated",
        "test_two_planners_one_wins",
        "test_changes_of_a_mixed_batch_are_accepted_one_by_one",
        "test_a_refused_change_writes_nothing",
        "test_payload_survives_byte_for_byte",
        "test_gate_upsert_changes_max_and_keeps_held",
        "test_finish_under_the_lease",
        "test_finish_repeated",
        "test_stale_epoch_refused",
        "test_releases",
        "test_unique_key_twice_in_one_batch",
        # claim and renew
        "test_claim_sets_owner_epoch_attempt_and_lease",
        "test_claim_writes_run_started",
        "test_lanes",
        "test_ids",
        "test_several_gates",
        "test_runs_are_unparked_in_order_up_to_the_room",
        "test_concurrent_claimers_get_distinct_runs",
        "test_concurrent_claimers_respect_a_gate",
        "test_a_claim_in_a_commit_passes_gates_which_the_commit_releases",
        "test_a_claim_in_a_commit_takes_planned_runs_ahead",
        "test_a_run_due_soon_is_claimed_now_and_starts_at_its_time",
        "test_renew_many_reports_each",
        "test_renew_reports_runs_that_the_owner_did_not_name",
        "test_progress",
        # due
        "test_due_by_next_at",
        "test_a_hold_hides_rows_until_it_ends",
        "test_touches",
        "test_rescue_and_claim_again",
        "test_without_now_the_store_uses_its_own_clock",
        # wait
        "test_wait_is_woken_by_a_change",
        "test_wait_times_out",
        # find and tail
        "test_every_query_of_an_empty_store_returns_no_rows",
        "test_schedules",
        "test_each_filter",
        "test_pages_without_gaps_or_repeats",
        "test_event_pages_and_tail",
        "test_find_lanes",
        "test_find_leases",
        # key values, leases
        "test_an_entry_is_read_back_unchanged",
        "test_of_ten_concurrent_entries_with_one_id_one_is_stored",
        "test_removing_returns_the_number_of_removed_entries",
        "test_an_entry_survives_closing_and_opening",
        "test_a_lease_survives_closing_and_opening",
        "test_of_concurrent_requests_one_takes_each_term",
        "test_of_eight_concurrent_requests_one_takes_the_lease",
        "test_release_frees_and_the_epoch_grows",
        # purge and restore
        "test_ended_runs_go_with_their_streams",
        "test_schedule_stream_becomes_a_snapshot",
        "test_tallies",
        "test_restored_rows_replace_existing_rows",
        "test_restored_events_keep_their_numbers_and_the_log_continues_after_them",
    }
)
