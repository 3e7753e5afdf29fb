"""The benchmark: Mainspring beside its peers and a floor, every contender in a process and environment of its own."""
