"""Contenders on PostgreSQL: one file each, given the URL of a database that nobody has used."""
