"""Mutants of calls to HTTP agents: addresses, redirects, secrets, leases that agents hold."""

from __future__ import annotations

from mutants_kind import Mutant

SSRF = "tests/agents/test_ssrf.py::"
CALLS = "tests/agents/test_agent_calls.py::"
BACK = "tests/agents/test_agent_callbacks.py::"
DOOR = "tests/agents/test_http_agents.py::"
PARTS = "tests/agents/test_agent_parts.py::"
QUERY = "tests/agents/test_query_values.py::"
S = "src/mainspring/"

AGENT_MUTANTS = (
    Mutant(
        "first-address-judged",
        "only the first address of a name is checked",
        S + "agents/guard.py",
        "return [self.check_address(text, host) for text in found]",
        "return [self.check_address(found[0], host)]",
        (SSRF + "test_no_url_of_the_corpus_reaches_a_forbidden_address",),
    ),
    Mutant(
        "literals-not-judged",
        "an address in the URL is connected to without a check",
        S + "executors/http.py",
        "        self._guard.check_address(address[0], _HOST.get())\n",
        "",
        (SSRF + "test_no_url_of_the_corpus_reaches_a_forbidden_address",),
    ),
    Mutant(
        "mapped-addresses-are-public",
        "an IPv4 address inside an IPv6 address is not recognised",
        S + "agents/addresses.py",
        "            return address.ipv4_mapped\n",
        "            return address\n",
        (SSRF + "test_no_url_of_the_corpus_reaches_a_forbidden_address",),
    ),
    Mutant(
        "metadata-can-be-allowed",
        "an allow-list opens the metadata service",
        S + "agents/guard.py",
        'if verdict == "never":',
        'if verdict == "never" and not self._listed(host, address):',
        (SSRF + "test_metadata_and_link_local_are_never_called_whatever_is_allowed",),
    ),
    Mutant(
        "redirects-followed",
        "a redirect is followed",
        S + "executors/http.py",
        "allow_redirects=False",
        "allow_redirects=True",
        (CALLS + "test_other_answers_fail_at_once",),
    ),
    Mutant(
        "retry-after-ignored",
        "an agent's `Retry-After` is ignored",
        S + "engine/work/recorder.py",
        "again = max(again, now + outcome.retry_after)",
        "again = max(again, now)",
        (CALLS + "test_retry_after_is_honoured",),
    ),
    Mutant(
        "gone-is-forgotten",
        "410 does not pause the schedule",
        S + "rules/lanes.py",
        " or after.reason == AGENT_GONE\n",
        "\n",
        (CALLS + "test_gone_pauses_the_schedule_and_says_why",),
    ),
    Mutant(
        "bomb-unpacked",
        "a compressed answer is unpacked without a limit",
        S + "agents/response.py",
        "most = min(limit, max(RATIO_FREE_BYTES, read * MAX_COMPRESSION_RATIO))",
        "most = limit",
        (PARTS + "test_what_grows_too_much_is_left_and_rubbish_is_no_error",),
    ),
    Mutant(
        "answers-not-redacted",
        "an agent's answer is stored with our secrets in it",
        S + "agents/response.py",
        "        text = text.replace(part, _PLACE)\n",
        "        text = text.replace(part, part)\n",
        (CALLS + "test_an_agent_that_repeats_our_secrets_is_not_believed",),
    ),
    Mutant(
        "accepted-run-is-a-stray",
        "a worker takes back a run that it left to an agent",
        S + "engine/work/heartbeat.py",
        "            and (run.id, run.epoch) not in self._handed_over\n",
        "",
        (BACK + "test_the_agent_keeps_its_lease_by_heartbeats_much_longer_than_a_worker_would",),
    ),
    Mutant(
        "accepted-run-is-not-passed-on",
        "the lease of an accepted run stays as short as a worker's",
        S + "engine/work/heartbeat.py",
        "await self._store.renew(self._owner, leases, ttl)",
        "await self._store.renew(self._owner, [], ttl)",
        (BACK + "test_an_agent_may_be_silent_longer_than_a_workers_lease",),
    ),
    Mutant(
        "callback-of-any-attempt",
        "a callback of an earlier attempt ends the present one",
        S + "agents/callbacks.py",
        "if epoch != run.epoch:",
        "if epoch > run.epoch:",
        (BACK + "test_a_late_callback_of_an_earlier_attempt_is_refused",),
    ),
    Mutant(
        "token-never-ends",
        "a callback token never expires",
        S + "agents/signing.py",
        "return int(epoch) if right and now < int(expires) else None",
        "return int(epoch) if right else None",
        (PARTS + "test_a_token_is_good_for_one_attempt_of_one_run_until_it_ends",),
    ),
    Mutant(
        "token-of-any-run",
        "a callback token is accepted for other runs",
        S + "agents/signing.py",
        'f"{run_id}.{epoch}.{expires}".encode()',
        'f"{epoch}.{expires}".encode()',
        (BACK + "test_only_the_token_of_this_attempt_opens_the_door",),
    ),
    Mutant(
        "header-values-in-the-log",
        "header values are stored in the schedule's definition",
        S + "service/agent_secrets.py",
        "url=hide_query_values(url), headers_ref=ref,",
        "url=hide_query_values(url), agent_id=str(headers), headers_ref=ref,",
        (DOOR + "test_a_secret_canary_is_nowhere_but_where_it_is_kept",),
    ),
    Mutant(
        "query-values-in-the-log",
        "the query of an agent's URL is stored in the schedule's definition",
        S + "service/agent_secrets.py",
        "url=hide_query_values(url), headers_ref=ref,",
        "url=url, headers_ref=ref,",
        (QUERY + "test_query_values_are_in_no_event_row_answer_or_page",),
    ),
    Mutant(
        "query-values-go-to-another-host",
        "a stored query value is sent to a new host",
        S + "service/agent_secrets.py",
        "and origin_of(url) != origin_of(old.url)",
        "and url == old.url",
        (QUERY + "test_a_stored_query_value_is_not_sent_to_another_host",),
    ),
    Mutant(
        "waiting-call-sent-back",
        "a call at the limit of its host is sent back to the store, which counts an attempt",
        S + "agents/fair_limiter.py",
        "            if self._places.taken < self._places.total:",
        "            if self._places.taken < 0:",
        (PARTS + "test_a_call_in_a_waiting_place_gets_the_slot_at_the_moment_it_is_free",),
    ),
    Mutant(
        "slow-schedules-take-all",
        "one slow schedule may take the slots reserved for others",
        S + "agents/fair_limiter.py",
        "return self._used < self._limit and mine < self._limit / len(self._by_schedule)",
        "return self._used < add_reserve(self._limit)",
        (PARTS + "test_once_half_is_taken_no_schedule_has_more_than_a_share_and_newcomers_may",),
    ),
)
