"""What the scripts of tests/reference share: where things are, and how a comparison ends."""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("INCIPIT_BUILD", ROOT / "build/release")).absolute()
DATA = ROOT / "tests/data"


class Report:
    """Counts comparisons; prints the failures as they come, and a line at the end."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, ok, what):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED  {what}", flush=True)
        return ok

    def end(self):
        print(f"{self.name}: {self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed else 0)
