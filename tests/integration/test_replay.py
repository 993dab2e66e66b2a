"""make replay: its table has a row for every policy of the router, and equal arguments give equal figures."""
import os
import re
import subprocess

from conftest import BUILD, ROOT


def table(*arguments):
    done = subprocess.run([ROOT / "tests/replay/replay.py", BUILD / "tests/replay/replay", *arguments, "--quick"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "JOBS": "1"}, check=True)
    return done.stdout


def test_the_table_has_every_policy_and_is_repeatable():
    small = ("workers", "2", "duration", "100", "load", "0.5")
    text = table(*small)
    names = set(re.findall(r"(?m)^([a-z_]+) +[0-9.]+ %", text))
    known = subprocess.run([BUILD / "incipit-router", "--help", "policy"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert {"prefix", "oracle"} < names
    for name in names - {"oracle", "oracle_selfish"}:
        assert re.search(rf"\b{name}\b", known), name
    assert len(names) == 14
    assert text == table(*small)


def test_an_unknown_argument_is_reported():
    done = subprocess.run([BUILD / "tests/replay/replay", "wrokers", "2"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "wrokers" in done.stderr
    done = subprocess.run([BUILD / "tests/replay/replay", "trace", "/nowhere"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "/nowhere" in done.stderr
