#!/usr/bin/env python3
"""tests/rooms.py: what each folder of the programs may include; tests/lint calls it.

ARROWS is the architecture: a folder and the folders whose headers it may include, itself aside. An include that is not
listed, an entry that nothing uses, a circle, and a folder with more files than a reader can keep in mind are printed.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_FILES, MAX_ROUTER_TOP = 25, 15

COMMON = "common/base common/text common/net common/telemetry common/options common/protocol common/http"
PURE = "common/base"
ARROWS = {
    "common/base": "",
    "common/text": "common/base",
    "common/net": "common/base",
    "common/telemetry": "common/base common/text common/net",
    "common/options": "common/base common/text",
    "common/protocol": "common/base common/text",
    "common/http": "common/base common/net common/telemetry common/protocol",

    # Pure: no clock, no socket, no log.
    "router/prompt": "common/base common/text common/protocol common/http",
    "router/pairing": PURE,
    "router/routing": PURE + " router/pairing",
    "router/routing/policy": PURE + " router/routing",
    "router/routing/decision": PURE + " router/routing",
    "router/queue": PURE + " router/routing",
    "router/sessions": PURE + " router/routing",
    "router/ejection": PURE,
    "router/poison": PURE,
    "router/metrics": "common/telemetry common/http",
    "router/registry": COMMON + " router/prompt router/pairing router/routing router/queue "
                       "router/sessions router/ejection",
    "router/access": COMMON + " router/metrics router/prompt",
    "router/proxy/answers": "common/base common/text common/protocol",
    "router/proxy/handover": "common/base common/text common/protocol router/prompt router/pairing",
    "router/proxy/upstream": COMMON + " router/registry",
    "router/proxy": COMMON + " router/metrics router/prompt router/access router/registry router/proxy/answers "
                    "router/proxy/handover router/proxy/upstream router/pairing router/poison",
    "router/fleet": COMMON + " router/access router/registry",
    "router/fleet/discovery": COMMON + " router/fleet router/registry",
    "router/kv": COMMON + " router/metrics router/registry",
    "router/sharing": COMMON + " router/metrics router/registry",
    "router/upgrade": COMMON + " router/access router/routing router/registry router/fleet router/sharing",
    "router/admin": COMMON + " router/metrics router/access router/registry router/fleet",
    "router/holds": COMMON + " router/metrics router/prompt router/access router/registry router/poison",
    "router/options": COMMON + " router/routing router/registry router/proxy router/fleet router/fleet/discovery router/sharing",
    "router": COMMON + " router/prompt router/metrics router/access router/registry router/proxy router/fleet "
              "router/fleet/discovery router/poison router/kv router/sharing router/upgrade router/admin router/holds router/options",

    # backend.h is all that a worker knows of devices.
    "kernels": "common/base",
    "kernels/tp": "common/base kernels",
    "kernels/host": "common/base kernels kernels/tp",
    "kernels/ref": "common/base kernels kernels/host kernels/tp",
    "kernels/sim": "common/base kernels/host",
    "kernels/cpu": "common/base kernels kernels/host kernels/tp",
    "kernels/cuda/device": "common/base kernels/tp",
    "kernels/cuda/attend": "common/base kernels kernels/cuda/device",
    "kernels/cuda/sampling": "kernels kernels/cuda/device",
    "kernels/cuda/ops": "kernels kernels/cuda/device",
    "kernels/cuda/products": "kernels kernels/cuda/device kernels/cuda/ops",
    "kernels/cuda": "common/base kernels kernels/host kernels/tp kernels/cuda/device kernels/cuda/attend "
                    "kernels/cuda/sampling kernels/cuda/ops kernels/cuda/products",

    # Pure: what an answer may look like.
    "worker/grammar/core": "common/base",
    "worker/grammar/schema": "common/base common/text worker/grammar/core",
    "worker/grammar/notation": "common/base worker/grammar/core",
    "worker/grammar/tags": "common/base common/text worker/grammar/core worker/grammar/schema worker/grammar/notation",
    "worker/grammar": "common/base common/net common/text worker/grammar/core worker/grammar/schema worker/grammar/notation worker/grammar/tags",

    "worker/output/arguments": "common/base common/text",
    "worker/output": "common/base common/text worker/output/arguments",

    "worker/kv/block": "common/base",
    "worker/kv": "common/base common/text worker/kv/block worker/kv/tiers",
    "worker/kv/tiers": "common/base common/net common/telemetry",
    "worker/kv/tiers/store": "common/base common/net common/telemetry worker/kv/tiers",
    "worker/kv/tiers/peer": "common/base common/net common/telemetry worker/kv/tiers",
    "worker/sched": "common/base common/net kernels worker/kv worker/kv/tiers worker/grammar",
    "worker/model/checkpoint": "common/base common/text kernels",
    "worker/model/quant": "common/base common/text kernels worker/model/checkpoint",
    "worker/model": COMMON + " kernels worker/model/checkpoint worker/model/quant",
    "worker/text/unicode": "common/base",
    "worker/text/tokenizer": "common/base common/text worker/text/unicode",
    "worker/text/template": "common/base common/text worker/text/unicode",
    "worker/text": "common/base common/net worker/text/tokenizer",
    "worker/engine/tiers": "common/base worker/kv/tiers worker/kv/tiers/peer worker/sched",
    "worker/engine": COMMON + " kernels kernels/tp worker/kv worker/kv/tiers worker/kv/tiers/peer worker/grammar worker/sched worker/model worker/engine/tiers",
    "worker/metrics": COMMON + " worker/kv worker/kv/block worker/kv/tiers worker/text worker/grammar worker/engine worker/engine/tiers",
    "worker/api/fields": "common/base common/text worker/grammar worker/output worker/sched worker/model worker/text worker/text/tokenizer",
    "worker/api/events": "common/base common/net common/text common/protocol common/http",
    "worker/api/stores": "common/base common/text",
    "worker/api/wires": "common/base common/text common/protocol worker/output worker/api/stores",
    "worker/api/shapes": "common/base common/http common/protocol common/text worker/output worker/text worker/text/tokenizer worker/api worker/api/fields "
                         "worker/api/stores worker/api/wires",
    "worker/api": COMMON + " kernels worker/grammar worker/output worker/sched worker/model worker/text worker/text/tokenizer worker/text/template "
                  "worker/kv/tiers worker/kv/tiers/peer worker/engine worker/metrics worker/api/fields worker/api/events worker/api/stores worker/api/wires",
    "worker": COMMON + " kernels kernels/host kernels/tp worker/kv/tiers worker/kv/tiers/store worker/kv/tiers/peer worker/grammar worker/output worker/sched worker/model worker/text worker/text/tokenizer "
              "worker/text/template worker/engine worker/metrics worker/api worker/api/events worker/api/stores",
}


def sources():
    names = subprocess.run(["git", "ls-files", "common", "router", "worker", "kernels"], cwd=ROOT, stdout=subprocess.PIPE,
                           text=True, check=True).stdout.split()
    return [n for n in names if n.endswith((".c", ".h", ".cu", ".cuh", ".inc"))]


def includes(files):
    """(file, line, header) for each include by path."""
    for file in files:
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include "([^"]+)"', line)
            if found:
                yield file, number, found[1]


def in_a_circle(arrows):
    """The rooms that are left when all are taken away that include none of those left."""
    left = dict(arrows)
    while True:
        free = [room for room, below in left.items() if not set(below) & set(left)]
        if not free:
            return sorted(left)
        for room in free:
            del left[room]


def main():
    files, breaches, used = sources(), [], set()
    arrows = {room: below.split() for room, below in ARROWS.items()}
    for file, line, header in includes(files):
        room, other = os.path.dirname(file), os.path.dirname(header)
        if room == other:
            continue
        used.add((room, other))
        if room not in arrows:
            breaches.append(f"{file}: the folder {room} is not in tests/rooms.py")
        elif other not in arrows[room]:
            breaches.append(f"{file}:{line}: {room} may not include {header}: see ARROWS in tests/rooms.py")
    for room, below in arrows.items():
        breaches += [f"tests/rooms.py: {room} includes nothing of {other}: remove the arrow" for other in below
                     if (room, other) not in used and ARROWS[room].find(COMMON) < 0]
    circle = in_a_circle(arrows)
    if circle:
        breaches.append(f"a circle of includes: {', '.join(circle)}")
    for room in arrows:
        n = sum(os.path.dirname(file) == room for file in files)
        most = MAX_ROUTER_TOP if room == "router" else MAX_FILES
        if n > most:
            breaches.append(f"{room} has {n} files: {most} at most, so that a reader finds a way; make a room of some")
    print("\n".join(breaches))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
