"""Real servers for tests, benchmarks and the chaos run: started when asked for, gone when nobody needs them."""
