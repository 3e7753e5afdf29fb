"""Brokers: how hints of work and events travel between processes."""
