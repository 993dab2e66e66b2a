"""What of PromQL it takes to see which metrics and labels an expression asks for, and the expressions of deploy/."""
import json
import re

TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[a-zA-Z_:][\w:]*|\[[^\]]*\]|=~|!~|!=|==|>=|<=|\d[\w.]*|.)', re.S)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = GROUPING | {"and", "or", "unless", "bool", "offset", "inf", "nan"}


def tokens(expression):
    return [t for t in TOKEN.findall(expression.strip()) if t.strip()]


def asked(expression):
    """(metric, its labels in braces) of each selector, and the labels that results are grouped by."""
    words, selectors, grouped, i = tokens(expression), [], set(), 0
    while i < len(words):
        word, after = words[i], words[i + 1] if i + 1 < len(words) else ""
        if word.lower() in GROUPING and after == "(":
            end = words.index(")", i)
            grouped |= {w for w in words[i + 2:end] if w != ","}
            i = end
        elif re.match(r"[a-zA-Z_:]", word) and word.lower() not in WORDS and after not in ("(", "by", "without"):
            labels = {}
            if after == "{":
                end = words.index("}", i)
                inside = words[i + 2:end]
                for k, w in enumerate(inside[:-2]):
                    if inside[k + 1] in ("=", "!=", "=~", "!~"):
                        labels[w] = (inside[k + 1], inside[k + 2].strip("\"'"))
                i = end
            selectors.append((word, labels))
        i += 1
    return selectors, grouped


def without_comparison(expression):
    """The left side of the outermost comparison: what an alert looks at."""
    words, depth = tokens(expression), 0
    for i, word in enumerate(words):
        depth += (word in "({") - (word in ")}")
        if depth == 0 and word in ("==", "!=", ">", "<", ">=", "<="):
            return " ".join(words[:i])
    return expression


def panels(root):
    """(title, panel) of the dashboard's panels that show something."""
    dashboard = json.loads((root / "deploy/grafana/incipit.json").read_text())
    return dashboard, [p for p in dashboard["panels"] if p["type"] != "row"]


def rules(root):
    """alert -> expression, from a file whose expressions have a line each."""
    text = (root / "deploy/prometheus/rules.yaml").read_text()
    found = dict(re.findall(r"(?m)^ +- alert: (\w+)\n +expr: (.*)$", text))
    assert len(found) == text.count("- alert:") == text.count("expr:")
    return found


def filled_in(expression, interval="10s"):
    """As Grafana would ask it, all models chosen."""
    return expression.replace("$__rate_interval", interval).replace("$model", ".*")
