"""Makes docs/pictures/env_learning.svg and the tables of seeds from what env_learning.py wrote.

.venv/bin/python docs/make_env_learning.py RESULTS...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "pictures" / "env_learning.svg"
WIDE, HIGH, EDGE, GAP = 860, 340, 52, 60
COLOURS = {"toolcall": "#c2410c", "terminal": "#1d4ed8"}


def read(file: Path) -> dict[str, Any]:
    """One run: how it was started, and its looks at held-out tasks."""
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    looks = [one for one in lines if one["kind"] == "look"]
    return {
        **lines[0],
        "sampled": [one for one in looks if one["temperature"]],
        "greedy": [one for one in looks if not one["temperature"]],
    }


def chart(runs: list[dict[str, Any]]) -> str:
    names = sorted({one["environment"] for one in runs}, reverse=True)
    each = (WIDE - 2 * EDGE - GAP * (len(names) - 1)) / len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="white"/>',
    ]
    for number, name in enumerate(names):
        own = [one for one in runs if one["environment"] == name]
        parts += panel(own, name, EDGE + number * (each + GAP), each)
    return "\n".join([*parts, "</svg>\n"])


def panel(runs: list[dict[str, Any]], name: str, left: float, wide: float) -> list[str]:
    last = max(look["updates"] for run in runs for look in run["sampled"]) or 1
    top, bottom = 48, HIGH - 48

    def place(updates: float, reward: float) -> str:
        return f"{left + wide * updates / last:.1f},{bottom - (bottom - top) * reward:.1f}"

    parts = [f'<text x="{left}" y="26" font-size="16">{escape(name)}</text>']
    for step in range(6):
        y = bottom - (bottom - top) * step / 5
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 28}" y="{y + 4}">{step / 5:.1f}</text>')
    for updates in sorted({look["updates"] for run in runs for look in run["sampled"]}):
        x = left + wide * updates / last
        parts.append(f'<text x="{x - 6:.1f}" y="{bottom + 18}">{updates}</text>')
    parts.append(f'<text x="{left + wide / 2 - 26:.1f}" y="{HIGH - 8}">updates</text>')
    for run in runs:
        for kind, dash in (("sampled", ""), ("greedy", ' stroke-dasharray="5 4" opacity="0.6"')):
            spots = [place(look["updates"], look["reward"]) for look in run[kind]]
            parts.append(
                f'<polyline points="{" ".join(spots)}" fill="none" stroke="{COLOURS[name]}" '
                f'stroke-width="2"{dash}/>'
            )
            for spot in spots if kind == "sampled" else ():
                x, y = spot.split(",")
                parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{COLOURS[name]}"/>')
    words = f"reward on held-out tasks, {len(runs)} seeds; dashed: greedy"
    return [*parts, f'<text x="{left}" y="42" fill="#555" font-size="12">{words}</text>']


def tables(runs: list[dict[str, Any]]) -> str:
    """For environments.md: a row a seed, and a row a skill."""
    out = [
        "| environment | seed | updates | before | after | gain | greedy before | greedy after |"
    ]
    out.append("|---|---|---|---|---|---|---|---|")
    for run in runs:
        first, last = run["sampled"][0], run["sampled"][-1]
        greedy = [_shown(run["greedy"], at) for at in (0, 1)]
        gain = last["reward"] - first["reward"]
        cells = [run["environment"], run["seed"], last["updates"], f"{first['reward']:.2f}"]
        cells += [f"{last['reward']:.2f}", f"{gain:+.2f}", *greedy]
        out.append("| " + " | ".join(map(str, cells)) + " |")
    for name in sorted({run["environment"] for run in runs}, reverse=True):
        own = [run for run in runs if run["environment"] == name]
        out += ["", f"| {name} | before | after |", "|---|---|---|"]
        for skill in own[0]["sampled"][0]["skills"]:
            found = [fmean(run["sampled"][at]["skills"][skill] for run in own) for at in (0, -1)]
            out.append(f"| `{skill}` | " + " | ".join(f"{one:.2f}" for one in found) + " |")
    return "\n".join(out)


def _shown(looks: list[dict[str, Any]], at: int) -> str:
    """A run that was ended early has no second greedy look."""
    return f"{looks[at]['reward']:.2f}" if at < len(looks) else "-"


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    if not files:
        sys.exit("give the files that benchmarks/env_learning.py wrote")
    runs = [read(file) for file in sorted(files)]
    PICTURE.write_text(chart(runs), "utf-8")
    print(tables(runs))


if __name__ == "__main__":
    main()
