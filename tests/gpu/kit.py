#!/usr/bin/env python3
"""kit.py OBJECTS WORKER KIT: the folder that is carried to a GPU machine, from what make gpu-kit has built.

Such a machine has NVIDIA's driver and Python 3, and perhaps nothing else: no compiler, package, network or CUDA
toolkit. Every program is stripped, and is refused here when it names a folder of this machine, a library that is neither
libc's nor the kit's, or a newer glibc than LEAST_GLIBC. cuBLASLt does not travel: it has over 500 MB.
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_BYTES = 30_000_000
LEAST_GLIBC = (2, 34)
SCRIPTS = ("check.py", "runner.py", "bars.py", "expected.json", "peer_llama.py", "peer_attention.py")
PROGRAMS = ("gpu_steps", "gpu_kernels", "gpu_products", "gpu_soak", "make_random_model")
LIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1"}
OWN = {"libincipit_gpu.so"}
# A toolkit's objects run on every driver of its major version: the first of each.
DRIVERS = {12: ("525", 12000), 13: ("580", 13000)}

RUN = """#!/bin/sh
# run [--budget SECONDS] [--phases a,b] ...: the check of the CUDA backend on this machine; see README.
exec python3 "$(dirname "$0")/check.py" "$@"
"""

README = """Incipit's GPU check, built with CUDA {toolkit}: needs NVIDIA's driver {driver} or newer and Python 3.

    ./run --budget 480                  all phases, in order of value; again: what is left
    ./run --phases device,steps         some of them
    ./run --help

Results: out/check.json, out/table.txt, and a log and the figures of each phase; in $OUT when that is set. A run that is
killed goes on where it was. Without a GPU every phase reports that, and the exit code is 0. Exit code 1: something is
wrong. cuBLASLt is looked for on the machine ($INCIPIT_CUDA_LIBRARIES names folders); SHA256SUMS has the files of the kit.
"""


def fail(sentence):
    sys.exit(f"gpu-kit: {sentence}")


def output(*command):
    return subprocess.run([str(a) for a in command], capture_output=True, text=True, check=True).stdout


def toolkit(nvcc):
    found = re.search(r"release (\d+)\.(\d+)", output(nvcc, "--version"))
    return int(found[1]), int(found[2])


def describe(nvcc, archs, ptx):
    major, minor = toolkit(nvcc)
    name, least = DRIVERS.get(major, (f"of CUDA {major}", 1000 * major))
    try:
        commit = output("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    return {"version": (ROOT / "VERSION").read_text().strip(), "commit": commit, "toolkit": f"{major}.{minor}",
            "driver_name": name, "least_driver": least, "sass": archs.split(), "ptx": ptx.split()}


def copy(kit, objects, worker):
    for folder in ("bin/tests", "bin/lib", "model"):
        (kit / folder).mkdir(parents=True)
    for name in SCRIPTS:
        shutil.copy(ROOT / "tests/gpu" / name, kit)
    for name in PROGRAMS:
        shutil.copy(objects / "gpu" / name, kit / "bin")
    for test in (objects / "gpu/tests").glob("test_*"):
        shutil.copy(test, kit / "bin/tests")
    shutil.copy(objects / "gpu/lib/libincipit_gpu.so", kit / "bin/lib")
    shutil.copy(objects / "incipit_cuda.so", kit / "bin/lib")
    shutil.copy(worker, kit / "bin/incipit-worker")
    for file in (ROOT / "deploy/demo/model").iterdir():
        shutil.copy(file, kit / "model")


def binaries(kit):
    return sorted(p for p in (kit / "bin").rglob("*") if p.is_file())


def check_binary(kit, path):
    name = path.relative_to(kit)
    dynamic = output("readelf", "-d", path)
    unknown = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)) - LIBC - OWN
    if unknown:
        fail(f"{name} needs {', '.join(sorted(unknown))}, which a bare machine may not have")
    for folder in re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", dynamic):
        if not folder.startswith("$ORIGIN"):
            fail(f"{name} looks for libraries in {folder}, a folder of this machine")
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)\b", output("objdump", "-T", path))]
    if max(versions, default=(0, 0)) > LEAST_GLIBC:
        fail(f"{name} needs glibc {max(versions)}: {LEAST_GLIBC} is the least that machines have")
    for folder in {str(ROOT), os.path.expanduser("~") + "/", os.getcwd()}:
        if folder.encode() in path.read_bytes():
            fail(f"{name} has the path {folder} of this machine in it")


def main():
    objects, worker, kit = (pathlib.Path(a).absolute() for a in sys.argv[1:4])
    nvcc, archs, ptx = sys.argv[4:7]
    shutil.rmtree(kit, ignore_errors=True)
    about = describe(nvcc, archs, ptx)
    copy(kit, objects, worker)
    for path in binaries(kit):
        subprocess.run(["strip", "--strip-all", path], check=True)
        check_binary(kit, path)
    (kit / "kit.json").write_text(json.dumps(about, indent=1) + "\n")
    (kit / "README").write_text(README.format(toolkit=about["toolkit"], driver=about["driver_name"]))
    (kit / "run").write_text(RUN)
    for path in (kit / "run", kit / "check.py"):
        path.chmod(0o755)
    files = sorted(p for p in kit.rglob("*") if p.is_file())
    (kit / "SHA256SUMS").write_text("".join(
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(kit)}\n" for p in files))
    n_bytes = sum(p.stat().st_size for p in kit.rglob("*") if p.is_file())
    if n_bytes > MAX_BYTES:
        fail(f"{kit} has {n_bytes} bytes: {MAX_BYTES} at most")
    print(f"{os.path.relpath(kit)}: {n_bytes / 1e6:.1f} MB, {len(files) + 1} files, sm_{', sm_'.join(about['sass'])} and "
          f"PTX {', '.join(about['ptx'])} by CUDA {about['toolkit']}: driver {about['driver_name']} or newer")


if __name__ == "__main__":
    main()
