"""A chart of the result, as SVG; readable on light and on dark pages."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

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
_PANELS = (
    ("drain", "per_second", "Drain no-op runs (runs per second, more is better)", "{:,.0f}/s"),
    ("memory", "per_second", "Drain from the memory store (runs per second, more is better)", "{:,.0f}/s"),
    ("enqueue", "per_second", "Enqueue (per second, more is better)", "{:,.0f}/s"),
    ("latency", "p99_ms", "Enqueue to start, p99 (ms, less is better)", "{:,.1f} ms"),
    ("million", "cpu_us", "CPU of one fire, 100 due per second (µs, less is better)", "{:,.0f} µs"),
    ("add", "per_second", "Adding schedules (per second, more is better)", "{:,.0f}/s"),
)
_WIDTH, _LEFT, _BARS, _ROW = 790, 280, 400, 22


def chart(document: dict[str, Any]) -> str:
    """One panel of bars for each scenario that was measured; each panel has its own scale."""
    y = 10
    drawn: list[str] = []
    for key, figure, title, form in _PANELS:
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
    said = (
        f"{about['date']}, {about['commit']}, {about['cores']} cores, Python {about['python']}; WAL, synchronous=FULL"
    )
    drawn.append(f'<text class="small" x="10" y="{y + 8}">{escape(said)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 20}" width="{_WIDTH}" height="{y + 20}" '
        f'role="img" aria-label="Benchmark results"><style>{_STYLE}</style>\n' + "\n".join(drawn) + "\n</svg>\n"
    )


def _bar(y: int, label: str, contender: str, value: float, largest: float, form: str) -> str:
    width = max(1.0, _BARS * value / largest)
    kind = {"mainspring": "ours", "floor": "floor"}.get(contender, "other")
    return (
        f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
        f'<rect class="{kind}" x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="15" rx="2"/>'
        f'<text class="small" x="{_LEFT + width + 6:.1f}" y="{y + 15}">{escape(form.format(value))}</text>'
    )
