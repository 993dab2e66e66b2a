"""Our JSON Schemas against the JSON-Schema-Test-Suite, which the sdist of `jsonschema` has inside.

    json_schema_suite.py            fetches the sdist with pip, unless SUITE names a folder that has tests/draft2020-12

Each test of the suite is one of four: *passed*; *refused* (the schema has a keyword that is not enforced: 400);
*false negative* (a valid instance that no order of its properties makes acceptable); *false positive* (an invalid one
that is accepted). Of the last there may be none: what a schema forbids must not be generated.
"""
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

from common import BUILD, Report

MAX_ORDERS = 120
# What a string of that format may not look like is not enforced by design: schema.h lists what is.
ANNOTATIONS = {"idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "relative-json-pointer", "regex", "unknown",
               "uri-reference", "uri-template", "ecmascript-regex"}


def suite():
    if os.environ.get("SUITE"):
        return pathlib.Path(os.environ["SUITE"])
    folder = pathlib.Path(tempfile.mkdtemp())
    fetched = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "jsonschema==4.26.0",
                              "-d", folder], check=False, capture_output=True, text=True)
    archives = list(folder.glob("jsonschema-*.tar.gz"))
    if not archives:
        print(f"SKIPPED the suite of jsonschema: pip could not fetch it: {fetched.stderr.strip().splitlines()[-1:]}")
        return folder
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("jsonschema-*/json"))


def groups(without=ANNOTATIONS):
    """(file, group of tests)."""
    for path in sorted((suite() / "tests/draft2020-12").rglob("*.json")):
        if path.stem not in without:
            for group in json.loads(path.read_text()):
                yield path.stem, group


def spellings(value):
    """Texts of a value: every order of properties, up to a limit."""
    if isinstance(value, dict):
        orders = itertools.permutations(value.items()) if len(value) < 6 else [tuple(value.items())]
        for order in orders:
            parts = [[json.dumps(k, ensure_ascii=False) + ":" + s for s in itertools.islice(spellings(v), 6)] for k, v in order]
            for members in itertools.product(*parts):
                yield "{" + ",".join(members) + "}"
    elif isinstance(value, list):
        for items in itertools.product(*[list(itertools.islice(spellings(v), 6)) for v in value]):
            yield "[" + ",".join(items) + "]"
    elif isinstance(value, float) and value.is_integer():
        yield json.dumps(value)
        yield json.dumps(int(value))
    else:
        yield json.dumps(value, ensure_ascii=False)


def main():
    program = subprocess.Popen([str(BUILD / "tests/reference/grammar"), "accept"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    counts = dict.fromkeys(["passed", "refused", "false negative", "false positive"], 0)
    report = Report("json_schema_suite")
    refusals = {}

    for stem, group in groups():
        tests = [(t, [s for s in itertools.islice(spellings(t["data"]), MAX_ORDERS) if "\0" not in s and "\\u0000" not in s])
                 for t in group["tests"]]
        line = {"kind": "json", "text": json.dumps(group["schema"]), "answers": [s for _, texts in tests for s in texts]}
        program.stdin.write(json.dumps(line) + "\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        if "error" in answer:
            counts["refused"] += len(tests)
            refusals[answer["error"].split(": ")[-1][:60]] = refusals.get(answer["error"].split(": ")[-1][:60], 0) + 1
            # A schema that nothing satisfies is refused; then no test may be valid.
            if "no text satisfies" in answer["error"] and any(t["valid"] for t, _ in tests):
                counts["false negative"] += 1
            continue
        accepted = iter(answer["accepts"])
        for test, texts in tests:
            is_accepted = any([next(accepted) for _ in texts])
            kind = "passed" if is_accepted == test["valid"] else "false positive" if is_accepted else "false negative"
            counts[kind] += 1
            if kind == "false negative" and os.environ.get("VERBOSE"):
                print("false negative", stem, "|", group["description"], "|", test["description"])
            report.check(kind != "false positive", f"{stem}: {group['description']}: {test['description']}")
    program.stdin.close()
    print(", ".join(f"{n} {name}" for name, n in counts.items()))
    if os.environ.get("VERBOSE"):
        for reason, n in sorted(refusals.items(), key=lambda x: -x[1]):
            print(f"{n:5} {reason}")
    report.end()


if __name__ == "__main__":
    main()
