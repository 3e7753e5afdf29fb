"""Mutants of the service: access, keys, configuration, readiness, key-value entries."""

from __future__ import annotations

from mutants_kind import Mutant

S = "src/mainspring/"
ACCESS = "tests/server/test_access.py::"
SQLITE = "tests/backends/sqlite/test_sqlite_store.py::TestSqlite::"

SERVICE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "any-host",
        "on loopback, requests for any host name are answered",
        S + "server/access.py",
        "        if not server.on_loopback and not named:",
        "        if not named:",
        (ACCESS + "test_on_loopback_it_answers_to_its_own_names_only",),
    ),
    Mutant(
        "proxied-is-local",
        "a request that came through a proxy needs no key",
        S + "server/access.py",
        " and not any(name.startswith(_PROXY_HEADERS) for name in headers)",
        "",
        (ACCESS + "test_a_request_by_a_proxy_is_not_local",),
    ),
    Mutant(
        "runs-of-other-namespaces",
        "a run of another namespace can be read and cancelled by its id",
        S + "service/commands.py",
        "Runs(ns=ns, id=run_id, limit=1)",
        "Runs(id=run_id, limit=1)",
        ("tests/app/test_namespaces.py::test_a_run_of_another_namespace_is_unknown",),
    ),
    Mutant(
        "streams-over-the-limit",
        "requests that come together open more event streams than the limit",
        S + "api/stream_slots.py",
        "        self._open[caller] += 1\n",
        "",
        ("tests/api/test_event_stream.py::test_requests_that_come_together_open_no_more_streams_than_the_limit",),
    ),
    Mutant(
        "other-sites-may-write",
        "a page of another site may send requests that change something",
        S + "server/access.py",
        "return origin is not None and urlsplit(origin).netloc.lower() != host.lower()",
        "return False",
        (ACCESS + "test_a_page_of_another_site_changes_nothing",),
    ),
    Mutant(
        "id-is-enough",
        "a key is accepted by its id, whatever its secret",
        S + "service/api_keys.py",
        "        if not right or key is None",
        "        if key is None",
        (ACCESS + "test_every_wrong_token_gets_the_same_answer",),
    ),
    Mutant(
        "key-without-end",
        "the expiry of a cached key is not checked",
        S + "service/api_keys.py",
        " or (key.expires_at is not None and key.expires_at <= now)",
        "",
        (ACCESS + "test_a_key_expires_on_time_even_if_it_is_cached",),
    ),
    Mutant(
        "key-remembered-for-ever",
        "a revoked key stays valid once it is cached",
        S + "service/api_keys.py",
        "        if not 0 <= now - at < KEY_CACHE_MS:",
        "        if key_id not in self._seen:",
        (ACCESS + "test_a_revoked_key_is_refused_in_time_and_its_use_does_not_restore_it",),
    ),
    Mutant(
        "strangers-without-a-key",
        "the service starts on a public address although there is no key",
        S + "server/serve.py",
        "    if server.insecure_no_auth or (server.on_loopback and not server.require_key):",
        "    if server.insecure_no_auth or not server.require_key:",
        (ACCESS + "test_it_does_not_serve_other_machines_while_there_is_no_key",),
    ),
    Mutant(
        "status-tells-all",
        "a caller without a key gets the components",
        S + "api/routes/health.py",
        '    return caller != ""',
        "    return True",
        (ACCESS + "test_callers_without_a_key_get_no_details_of_the_status",),
    ),
    Mutant(
        "one-limit-for-all",
        "a client with wrong keys and a user share one rate limit",
        S + "server/access.py",
        '            return self._check_rate(f"key {key.id}", path) or key.name',
        "            return self._check_rate(_address(scope), path) or key.name",
        (ACCESS + "test_there_is_no_rate_limit_unless_configured_and_then_each_caller_has_its_own",),
    ),
    Mutant(
        "ready-while-late",
        "readiness does not check planning",
        S + "api/health_reporter.py",
        "lag > self._max_lag",
        "lag < 0",
        ("tests/api/test_health.py::test_it_is_not_ready_when_planning_lags",),
    ),
    Mutant(
        "file-over-variable",
        "the configuration file overrides .env",
        S + "config/resolve.py",
        '        values[key], origins[key] = value, f".env {from_dotenv.names[key]}"',
        '        values.setdefault(key, value)\n        origins[key] = f".env {from_dotenv.names[key]}"',
        ("tests/config/test_resolve.py::test_flag_over_env_over_dotenv_over_file_over_default",),
    ),
    Mutant(
        "reload-moves-the-port",
        "a running service reports that it listens on the port of the changed file",
        S + "config/resolve.py",
        "    live = [key for key in differences if KEYS[key].live]",
        "    live = list(differences)",
        ("tests/config/test_reload.py::test_a_reload_swaps_what_is_live_and_says_what_is_not",),
    ),
    Mutant(
        "file-watched-not-folder",
        "a symlink above the configuration file is not followed",
        S + "config/reload.py",
        "        found = os.stat(path)",
        "        found = os.lstat(path)",
        ("tests/config/test_reload.py::test_a_symlink_that_is_swapped_as_kubernetes_does_is_seen",),
    ),
    Mutant(
        "kept-replaced",
        "an existing key-value entry is overwritten by a later one (SQLite)",
        S + "backends/sqlite/keyvalue.py",
        "WHERE ?7 OR kept.expires_at <= ?6",
        "WHERE ?7 OR true OR kept.expires_at <= ?6",
        (SQLITE + "test_of_ten_concurrent_entries_with_one_id_one_is_stored",),
    ),
    Mutant(
        "kept-though-expired",
        "expired key-value entries are returned (SQLite)",
        S + "backends/sqlite/keyvalue.py",
        "(expires_at IS NULL OR expires_at > ?3)",
        "(expires_at IS NULL OR expires_at > ?3 OR true)",
        (SQLITE + "test_expired_entries_are_not_found",),
    ),
)
