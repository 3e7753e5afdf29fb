"""Contenders on Redis or Valkey: one file each, called with the URL of an unused server."""
