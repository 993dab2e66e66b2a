"""What router/METRICS.md and router/LOG.md list is what the router has."""
import re

from conftest import ROOT

PAGE = (ROOT / "router/LOG.md").read_text()
METRICS = (ROOT / "router/METRICS.md").read_text()


def rows(first_cell):
    """The tables' rows whose first cell matches: its text, and the other cells."""
    for line in PAGE.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("|") and (found := re.fullmatch(first_cell, cells[0])):
            yield found[1], cells[1:]


def test_the_table_of_metrics_is_the_page(sim_fleet):
    page = sim_fleet(n=1).metrics()
    shown = dict(re.findall(r"# HELP (\S+) (.*)", page))
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", page))
    also, ours = set(), set()
    for name, kind, _, help_text in re.findall(r"(?m)^\| `(\S+)` \| (\w+)[^|]* \| (.*?) \| (.*) \|$", METRICS):
        text, _, aliases = help_text.partition(" Also ")
        ours.add(name)
        assert (kinds[name], shown[name]) == (kind, text), name
        for alias in re.findall(r"`([^`]+)`", aliases):
            assert shown[alias] == text, alias
            also.add(alias)
    assert ours | also == set(shown)


def test_the_table_of_log_events_is_the_code():
    events = {}
    for path in [*(ROOT / "router").rglob("*.c"), *(ROOT / "common").rglob("*.c")]:
        for levels, event in re.findall(r'log_(?:event|always)\(\s*[^,]+,\s*([^",]*LOG_\w+),\s*"(\w+)"', path.read_text()):
            events.setdefault(event, set()).update(level.lower() for level in re.findall(r"LOG_(\w+)", levels))
    documented = {name: set(cells[0].split(", ")) for name, cells in rows(r"`([a-z_]+)`")
                  if len(cells) == 2 and cells[0].split(", ")[0] in ("debug", "info", "warn", "error")}
    assert documented == events


def test_every_warning_and_error_has_a_remedy():
    """deploy/TROUBLESHOOTING.md for the router, worker/LOG.md for the worker."""
    pages = {"router": ("deploy/TROUBLESHOOTING.md", "The router's log"), "worker": ("worker/LOG.md", "Warnings and errors")}
    for program in ("router", "worker"):
        logged = set()
        for path in [*(ROOT / program).rglob("*.c"), *(ROOT / "common").rglob("*.c")]:
            logged |= set(re.findall(r'log_(?:event|always)\(\s*[^,]+,\s*LOG_(?:WARN|ERROR),\s*"(\w+)"', path.read_text()))
        page, title = pages[program]
        section = (ROOT / page).read_text().split(f"## {title}\n")[1].split("\n## ")[0]
        listed = re.findall(r"(?m)^\| `(\w+)` \| (.+) \| (.+) \|$", section)
        assert {event for event, _, _ in listed} == logged
        assert len(listed) == len(logged)
