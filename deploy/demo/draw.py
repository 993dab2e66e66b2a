#!/usr/bin/env python3
"""draw.py FILE: the first-token times that `deploy/demo/run BUILD FILE` measured, as SVG on stdout.

A bar is the median of its requests, a dot one request. The card has its own background, so that it
is readable on any page. NOTE in the environment follows the machine's name in the caption.
"""
import os
import re
import statistics
import sys
from xml.sax.saxutils import escape

ROWS = [("prefix", "1"), ("prefix", "2"), ("round_robin", "1"), ("round_robin", "2")]
POLICIES = {"prefix": "prefix policy", "round_robin": "round robin"}
ORDER = {"1": "first question", "2": "second question"}
WIDTH, LEFT, RIGHT, TOP, ROW = 760, 222, 90, 66, 46  # pixels

# Attributes of each kind of mark, for a light page; a dark one is preferred by the reader's settings.
LIGHT = {
    "card": 'fill="#ffffff" stroke="#c8ccd1"', "grid": 'stroke="#e3e6ea"', "dot": 'fill="#1f2328" fill-opacity=".45"',
    "cold": 'fill="#b6bec8"', "warm": 'fill="#2da44e"', "words": 'fill="#1f2328"', "small": 'font-size="11.5" fill="#59636e"',
    "title": 'font-size="16" font-weight="600" fill="#1f2328"',
}
DARK = """@media (prefers-color-scheme: dark) {
  .card { fill: #161b22; stroke: #3d444d } .words, .title, .dot { fill: #e6edf3 } .small { fill: #9198a1 }
  .grid { stroke: #2b323b } .cold { fill: #59636e } .warm { fill: #3fb950 }
}"""


def read(path):
    """{(policy, question): [(ms, cached tokens, prompt tokens)]}"""
    found = {row: [] for row in ROWS}
    with open(path) as lines:
        for line in lines:
            policy, question, ms, _, cached, prompt = line.split()
            found[policy, question].append((float(ms), int(cached), int(prompt)))
    return found


def machine():
    with open("/proc/cpuinfo") as info:
        model = re.search(r"(?m)^model name\s*: (.*)$", info.read())
    note = os.environ.get("NOTE")
    return f"{model[1] if model else os.uname().machine}, {os.cpu_count()} cores" + (f", {note}" if note else "")


def step_of(longest_ms):
    """The distance of the grid's lines: 1, 2 or 5 times a power of ten, four to ten lines."""
    return next(s for e in range(7) for s in (10**e, 2 * 10**e, 5 * 10**e) if longest_ms / s <= 8)


def mark(tag, kind, words=None, **attributes):
    """An element; coordinates to a tenth of a pixel."""
    rest = " ".join(f'{name.replace("_", "-")}="{round(value, 1) if isinstance(value, float) else value}"'
                    for name, value in attributes.items())
    return f'<{tag} class="{kind}" {LIGHT[kind]} {rest}' + ("/>" if words is None else f">{escape(words)}</{tag}>")


def row(y, requests, policy, question, scale):
    times = [ms for ms, _, _ in requests]
    median, cached = statistics.median(times), requests[0][1]
    yield mark("text", "words", f"{POLICIES[policy]}, {ORDER[question]}", x=LEFT - 12, y=y + 11, text_anchor="end")
    yield mark("text", "small", f"{cached:,} of {requests[0][2]:,} tokens cached", x=LEFT - 12, y=y + 26, text_anchor="end")
    yield mark("rect", "warm" if cached else "cold", x=LEFT, y=y, width=median * scale, height=26)
    for i, ms in enumerate(times):
        yield mark("circle", "dot", cx=LEFT + ms * scale, cy=y + 5 + i * 16 / len(times), r=2)
    yield mark("text", "words", f"{median:.1f} ms", x=LEFT + max(times) * scale + 8, y=y + 18)


def draw(found):
    longest = max(ms for requests in found.values() for ms, _, _ in requests)
    scale, step = (WIDTH - LEFT - RIGHT) / longest, step_of(longest)
    bottom = TOP + ROW * len(ROWS)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 62}" viewBox="0 0 {WIDTH} {bottom + 62}" '
           f'font-family="system-ui, Helvetica, Arial, DejaVu Sans, sans-serif" font-size="13"><style>{DARK}</style>')
    yield mark("rect", "card", x=.5, y=.5, width=WIDTH - 1, height=bottom + 61, rx=8)
    yield mark("text", "title", "Time to the first token: two questions about one table of thirty people", x=20, y=30)
    yield mark("text", "small", f"Bars: medians of {len(found[ROWS[0]])} pairs. Dots: single requests. Nothing of a pair's table is "
               "cached before its first question.", x=20, y=49)
    for i in range(int(longest / step) + 1):
        x = LEFT + i * step * scale
        yield mark("path", "grid", d=f"M{x:.1f} {TOP}V{bottom}")
        yield mark("text", "small", f"{i * step:g} ms", x=x, y=bottom + 14, text_anchor="middle")
    for i, (policy, question) in enumerate(ROWS):
        yield from row(TOP + 8 + i * ROW, found[policy, question], policy, question, scale)
    yield mark("text", "small", f"Measured by make demo-drawing on {machine()}: two CPU workers, the demonstration model",
               x=20, y=bottom + 42)
    yield "</svg>"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: draw.py FILE, which deploy/demo/run BUILD FILE writes")
    print("\n".join(draw(read(sys.argv[1]))))
