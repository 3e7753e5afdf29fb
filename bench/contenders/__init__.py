"""One file for each contender; each imports nothing but the standard library, its own package and `common`."""
