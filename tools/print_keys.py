"""Print the table of settings for docs/serving.md, from the table in the code."""

from __future__ import annotations

from mainspring.config.keys import KEYS, value_of
from mainspring.config.settings import ServeSettings
from mainspring.config.shown import shown


def table() -> str:
    """Markdown: key, default, whether a running service takes it up."""
    rows = ["| key | default | |", "|---|---|---|"]
    for key, known in KEYS.items():
        rows.append(f"| `{key}` | {shown(key, value_of(ServeSettings(), key))} | {'•' if known.live else ''} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
