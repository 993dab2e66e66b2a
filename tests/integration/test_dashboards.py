"""The dashboard and the alerts ask for metrics and labels that the programs have (`make dashboards-check` asks for values)."""
import re
import shutil
import subprocess

import pytest

import promql
from conftest import ROOT, Router, Worker, http

DASHBOARD, PANELS = promql.panels(ROOT)
RULES = promql.rules(ROOT)
TARGET_LABELS = {"instance", "job"}  # Prometheus gives them to what it scrapes
EXPRESSIONS = [(p["title"], t["expr"]) for p in PANELS for t in p["targets"]] + list(RULES.items())


def test_the_parser_finds_the_series_of_an_expression():
    selectors, grouped = promql.asked('histogram_quantile(0.9, sum by (le, a) (rate(x:y_bucket{b=~"c{d}", e!="f"}[5m]))) / (up or z)')
    assert selectors == [("x:y_bucket", {"b": ("=~", "c{d}"), "e": ("!=", "f")}), ("up", {}), ("z", {})]
    assert grouped == {"le", "a"}
    assert promql.without_comparison('(a{b=">"} > bool 1) / c > 0.5') == '( a { b = ">" } > bool 1 ) / c'


@pytest.fixture(scope="module")
def exported():
    """metric -> its labels, of a router and a worker that have been asked something."""
    found = {}
    for program in ("router", "worker"):
        for name, kind, labels in re.findall(r"(?m)^\| `(\S+)` \| (\w+)[^|]* \| (.*?) \|", (ROOT / program / "METRICS.md").read_text()):
            own = set(re.findall(r"`(\w+)`", labels))
            if program == "worker" and not name.startswith("process_"):
                own |= {"model_name", "engine"}
            for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
                found[name + suffix] = own | ({"le"} if suffix == "_bucket" else set())
    return {**found, "up": set()}


@pytest.mark.parametrize("title, expression", EXPRESSIONS)
def test_an_expression_names_existing_series(exported, title, expression):
    selectors, grouped = promql.asked(promql.filled_in(expression))
    assert selectors
    allowed = set(TARGET_LABELS)
    for metric, labels in selectors:
        assert metric in exported, metric
        assert set(labels) <= exported[metric] | TARGET_LABELS, (metric, labels)
        allowed |= exported[metric]
    assert grouped <= allowed, grouped - allowed


def test_metrics_of_the_pages_are_exported_live(programs, exported):
    """The tables that are asked above are those of running programs."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    router = programs(Router, "--worker-urls", worker.url).ready(1)
    router.post("/v1/completions", {"prompt": "once", "max_tokens": 2})
    live = set(re.findall(r"(?m)^# TYPE (\S+)", http(router.admin_url + "/metrics").body + worker.metrics()))
    asked = {m for _, e in EXPRESSIONS for m, _ in promql.asked(promql.filled_in(e))[0]} - {"up"}
    assert {m for m in asked if re.sub("_(bucket|sum|count)$", "", m) not in live and m not in live} == set()


def test_every_panel_has_unit_description_and_position():
    assert len(PANELS) > 40
    for p in PANELS:
        assert p["description"].endswith(".") and len(p["description"]) > 20, p["title"]
        assert p["fieldConfig"]["defaults"]["unit"], p["title"]
        assert p["datasource"]["uid"] == "${datasource}" and all(t["datasource"]["uid"] == "${datasource}" for t in p["targets"])
        assert p["gridPos"]["x"] + p["gridPos"]["w"] <= 24
    titles = [p["title"] for p in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(titles)
    rows = [p["title"] for p in DASHBOARD["panels"] if p["type"] == "row"]
    assert rows == ["Overview", "Routing", "Queue and sessions", "Workers", "Cache and index", "Sharing and discovery", "Reliability", "Process"]
    taken = set()
    for p in DASHBOARD["panels"]:
        g = p["gridPos"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken, p["title"]
        taken |= cells


def test_every_alert_has_a_remedy_and_its_section():
    text = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    sections = {title: title.lower() for title in re.findall(r"(?m)^## (\w+)$", (ROOT / "deploy/ALERTS.md").read_text())}
    for alert in text.split("- alert: ")[1:]:
        name = alert.split()[0]
        summary, remedy = re.search(r"summary: '(.+)'", alert)[1], re.search(r"description: '(.+)'", alert)[1]
        assert summary and len(remedy) > 60 and re.search(r"severity: (info|warning|critical)", alert), name
        assert re.search(r"runbook: (.+)", alert)[1] == f"deploy/ALERTS.md#{sections[name]}"
    assert set(sections) == set(RULES), "a section for each alert, an alert for each section"


@pytest.mark.skipif(not shutil.which("promtool"), reason="SKIPPED: promtool is not installed (make deps-test)")
def test_promtool_takes_the_rules_and_they_ring_when_they_should():
    folder = ROOT / "deploy/prometheus"
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]):
        done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout + done.stderr
