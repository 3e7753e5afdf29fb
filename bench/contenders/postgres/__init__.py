"""Contenders on PostgreSQL: one file each, called with the URL of an unused database."""
