"""A small line chart as SVG: style, topic and praise over updates."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from instar.demo.measure import Measured

_WIDE, _HIGH, _EDGE = 640, 360, 56
_LINES = (("style", "#c2410c", "style as wanted"), ("on_topic", "#1d4ed8", "answers on topic"))
_PRAISED = "#a8a29e"


def chart(looks: Sequence[Measured], *, praised: Sequence[float] = (), title: str) -> str:
    """The chart's SVG text; `praised` is the share of good verdicts in each update's batch."""
    last = max(look.updates for look in looks) or 1
    # A person's scores may be any numbers: the scale goes up to them, and none leaves the chart.
    top = max(1.0, *(look.style for look in looks))

    def place(updates: float, share: float) -> tuple[float, float]:
        x = _EDGE + (_WIDE - 2 * _EDGE) * updates / last
        return x, _HIGH - _EDGE - (_HIGH - 2 * _EDGE) * max(0.0, share / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
        f'<text x="{_EDGE}" y="26" font-size="16">{escape(title)}</text>',
    ]
    for step in range(6):
        x, y = place(0, top * step / 5)
        parts.append(f'<line x1="{x}" x2="{_WIDE - _EDGE}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 34}" y="{y + 4}">{top * step / 5:.1f}</text>')
    for look in looks:
        x, y = place(look.updates, 0)
        parts.append(f'<text x="{x - 5}" y="{y + 20}">{look.updates}</text>')
    parts.append(f'<text x="{_WIDE / 2 - 30}" y="{_HIGH - 12}">updates</text>')
    if praised:
        # The talk that an update learns from was held before it.
        points = [place(number, share) for number, share in enumerate(praised)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_PRAISED}"/>')
        y = 44 + 18 * len(_LINES)
        parts.append(
            f'<text x="{_WIDE - 190}" y="{y}" fill="{_PRAISED}">praised as it talks</text>'
        )
    for row, (name, colour, label) in enumerate(_LINES):
        spots = [place(look.updates, getattr(look, name)) for look in looks]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in spots]
        y = 44 + 18 * row
        parts.append(f'<text x="{_WIDE - 190}" y="{y}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>\n"])
