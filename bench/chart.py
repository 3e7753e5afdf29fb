"""Charts of the results as SVG, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from bench.envs import CONTENDERS

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 14px }
.small { font-size: 12px; fill: #59636e }
.other { fill: #8c959f }
.floor { fill: #c9d1d9 }
.ours { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .other { fill: #6e7681 }
  .floor { fill: #3d444d }
  .ours { fill: #4493f8 }
}
"""
_WIDTH, _LEFT, _BARS, _ROW = 830, 320, 400, 22


class Panel(NamedTuple):
    """One figure of a scenario, drawn as bars."""

    scenario: str
    figure: str
    title: str
    form: str


def chart(document: dict[str, Any], panels: Sequence[Panel], durability: str) -> str:
    """Return the SVG: one panel of bars, with its own scale, for each scenario that was measured."""
    y = 10
    drawn: list[str] = []
    for key, figure, title, form in panels:
        scenario = document["scenarios"].get(key, {"parts": []})
        bars = [
            (part["label"], part["contender"], part["medians"].get(figure))
            for part in scenario["parts"]
            if part["medians"].get(figure)
        ]
        if bars:
            drawn.append(f'<text class="title" x="10" y="{y + 16}">{escape(title)}</text>')
            y += 26
            largest = max(value for _, _, value in bars)
            for label, contender, value in bars:
                drawn.append(_bar(y, label, contender, value, largest, form))
                y += _ROW
            y += 14
    about = document["machine"]
    said = f"{about['date']}, {about['commit']}, {about['cores']} cores, Python {about['python']}; {durability}"
    drawn.append(f'<text class="small" x="10" y="{y + 8}">{escape(said)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 20}" width="{_WIDTH}" height="{y + 20}" '
        f'role="img" aria-label="Benchmark results"><style>{_STYLE}</style>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _bar(y: int, label: str, contender: str, value: float, largest: float, form: str) -> str:
    width = max(1.0, _BARS * value / largest)
    kind = CONTENDERS[contender].kind
    return (
        f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="15" rx="2"/>'
        f'<text class="small" x="{_LEFT + width + 6:.1f}" y="{y + 15}">{escape(form.format(value))}</text>'
    )
