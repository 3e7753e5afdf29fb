"""Real servers for tests, benchmarks and the chaos run; each starts on request and stops with its last user."""
