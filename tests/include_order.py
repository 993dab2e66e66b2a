#!/usr/bin/env python3
"""tests/include_order.py [--fix]: the order of includes: a file's own header, the system's, libraries', the project's.

Groups are separated by one blank line and sorted within. tests/lint calls it; --fix writes the files. Only the first run
of includes of a file counts: what stands behind a macro or a condition is there for a reason.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARIES = re.compile(r"<(event2/|curl/|openssl/|cjson/|hiredis/|xxhash|yaml|utf8proc|pcre2|cmocka|cuda|cublas|nccl|llama|ggml|gguf)")
INCLUDE = re.compile(r'#include ([<"][^>"]+[>"])(.*)$')


def group(file, header):
    if header == f'"{file.removesuffix(".c")}.h"':
        return 0
    if header.startswith("<"):
        return 2 if LIBRARIES.match(header) else 1
    return 3


def ordered(file, lines):
    """The includes of `lines` with groups apart; None where one is no plain include."""
    groups = ([], [], [], [])
    for line in lines:
        found = INCLUDE.match(line)
        if not found or found[1].endswith(('.inc"', '.c"', '.cuh"')):
            return None
        groups[group(file, found[1])].append(line)
    parts = [sorted(set(g), key=lambda line: INCLUDE.match(line)[1].lower()) for g in groups if g]
    return [line for part in parts for line in part + [""]][:-1]


def wanted(file, text):
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("#include ")), None)
    if first is None:
        return text
    end = first
    while end < len(lines) and (lines[end].startswith("#include ") or not lines[end]):
        end += 1
    while not lines[end - 1]:
        end -= 1
    run = ordered(file, [line for line in lines[first:end] if line])
    return text if run is None else "\n".join(lines[:first] + run + lines[end:]) + "\n"


def main():
    listed = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.cu"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    wrong = 0
    for file in listed.stdout.split():
        text = (ROOT / file).read_text()
        good = wanted(file, text)
        if good == text:
            continue
        wrong += 1
        if "--fix" in sys.argv[1:]:
            (ROOT / file).write_text(good)
        else:
            print(f"{file}: includes are not in order: run tests/include_order.py --fix")
    return 1 if wrong and "--fix" not in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
