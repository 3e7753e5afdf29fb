"""Print the table of settings for docs/serving.md, from the table in the code."""

from __future__ import annotations

from mainspring.config.redaction import format_value
from mainspring.config.schema import KEYS, get_value
from mainspring.config.settings import ServeSettings


def table() -> str:
    """Return the Markdown table: key, default, and whether a running service applies a change."""
    rows = ["| key | default | |", "|---|---|---|"]
    for key, known in KEYS.items():
        rows.append(f"| `{key}` | {format_value(key, get_value(ServeSettings(), key))} | {'•' if known.live else ''} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
