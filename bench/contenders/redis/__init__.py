"""Contenders on Redis or Valkey: one file each, given the URL of a server that nobody has used."""
