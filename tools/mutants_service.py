"""Mistakes in the service: who may ask, keys, configuration, readiness, what is kept beside the log."""

from __future__ import annotations

from mutants_kind import Mutant

S = "src/mainspring/"
ACCESS = "tests/api/test_access.py::"
SQLITE = "tests/contract/test_sqlite.py::TestSqlite::"

SERVICE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "any-host",
        "on loopback any name is answered",
        S + "api/access.py",
        "        if not server.on_loopback and not named:",
        "        if not named:",
        (ACCESS + "test_on_loopback_it_answers_to_its_own_names_only",),
    ),
    Mutant(
        "proxied-is-local",
        "what comes by a proxy needs no key",
        S + "api/access.py",
        " and not any(name in headers for name in _FORWARDED)",
        "",
        (ACCESS + "test_what_comes_by_a_proxy_is_not_local",),
    ),
    Mutant(
        "other-sites-may-write",
        "a page of another site may change things",
        S + "api/access.py",
        "return origin is not None and urlsplit(origin).netloc.lower() != host.lower()",
        "return False",
        (ACCESS + "test_a_page_of_another_site_changes_nothing",),
    ),
    Mutant(
        "id-is-enough",
        "a key's id opens, whatever its secret",
        S + "keys.py",
        "        if not right or key is None",
        "        if key is None",
        (ACCESS + "test_every_wrong_token_gets_the_same_answer",),
    ),
    Mutant(
        "key-without-end",
        "a key that was seen is not asked for its end",
        S + "keys.py",
        " or (key.expires_at is not None and key.expires_at <= now)",
        "",
        (ACCESS + "test_a_key_ends_at_its_hour_though_it_was_seen_before",),
    ),
    Mutant(
        "key-remembered-for-ever",
        "a revoked key that was seen stays good",
        S + "keys.py",
        "        if not 0 <= now - at < FRESH:",
        "        if key_id not in self._seen:",
        (ACCESS + "test_a_revoked_key_is_forgotten_in_time_and_no_use_brings_it_back",),
    ),
    Mutant(
        "strangers-without-a-key",
        "it serves strangers although there is no key",
        S + "serving.py",
        "    if server.insecure_no_auth or (server.on_loopback and not server.require_key):",
        "    if server.insecure_no_auth or not server.require_key:",
        (ACCESS + "test_it_does_not_serve_strangers_without_a_key",),
    ),
    Mutant(
        "status-tells-all",
        "strangers hear what the components are",
        S + "api/ops.py",
        '    if request.scope["state"].get("caller"):',
        '    if request.scope["state"] is not None:',
        (ACCESS + "test_strangers_hear_one_word_about_the_state",),
    ),
    Mutant(
        "one-limit-for-all",
        "a guesser and a user share a limit",
        S + "api/access.py",
        '            return self._limited(f"key {key.id}", path) or key.name',
        "            return self._limited(_address(scope), path) or key.name",
        (ACCESS + "test_no_limit_unless_configured_and_then_each_has_its_own",),
    ),
    Mutant(
        "ready-while-late",
        "readiness does not look at planning",
        S + "api/components.py",
        "lag > self.settings.scheduler.max_lag",
        "lag < 0",
        ("tests/api/test_ready.py::test_it_is_not_ready_when_planning_lags",),
    ),
    Mutant(
        "file-over-variable",
        "a file is stronger than .env",
        S + "config/resolve.py",
        '        values[key], origins[key] = value, f".env {from_dotenv.names[key]}"',
        '        values.setdefault(key, value)\n        origins[key] = f".env {from_dotenv.names[key]}"',
        ("tests/config/test_resolve.py::test_flag_over_env_over_dotenv_over_file_over_default",),
    ),
    Mutant(
        "reload-moves-the-port",
        "a running service believes that it listens where the new file says",
        S + "config/resolve.py",
        "    live = [key for key in differences if KEYS[key].live]",
        "    live = list(differences)",
        ("tests/config/test_reload.py::test_a_reload_swaps_what_is_live_and_says_what_is_not",),
    ),
    Mutant(
        "file-watched-not-folder",
        "a symlink above the file is not followed",
        S + "config/reload.py",
        "        found = os.stat(path)",
        "        found = os.lstat(path)",
        ("tests/config/test_reload.py::test_a_symlink_that_is_swapped_as_kubernetes_does_is_seen",),
    ),
    Mutant(
        "kept-replaced",
        "what is kept gives way to whoever comes (SQLite)",
        S + "stores/sqlite/kept.py",
        "WHERE ?7 OR kept.expires_at <= ?6",
        "WHERE ?7 OR true OR kept.expires_at <= ?6",
        (SQLITE + "test_of_many_who_keep_one_name_at_once_one_wins",),
    ),
    Mutant(
        "kept-though-expired",
        "what has expired is shown (SQLite)",
        S + "stores/sqlite/kept.py",
        "(expires_at IS NULL OR expires_at > ?3)",
        "(expires_at IS NULL OR expires_at > ?3 OR true)",
        (SQLITE + "test_expired_ones_are_not_shown",),
    ),
)
