#!/usr/bin/env python3
"""kit_check.py KIT: runs a kit as a bare machine would, up to the point where the card is missing.

In a Debian root that has libc and Python 3 and nothing else, on a file system that can be written only where the results
go, without a network: the checksums hold, every library is found, each phase ends with 'no GPU here' and the run with 0;
again with a driver of version 12.4, it ends with the sentence about drivers. The root is build/gpu-kit-root, made by
mmdebstrap or debootstrap when it is not there; without root rights or a way to make it, this is SKIPPED.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support.bare_dev import mount_dev

BARE = ROOT / "build/gpu-kit-root"
FAKE_DRIVER = "int cuDriverGetVersion(int *v); int cuDriverGetVersion(int *v) { *v = 12040; return 0; }\n"


def skip(why):
    print(f"SKIPPED the kit in a bare root: {why}")
    sys.exit(0)


def fail(what, text=""):
    sys.exit(f"{text}\ngpu-kit-check: {what}")


def make_root():
    if (BARE / "usr/bin/python3").exists():
        return
    if os.geteuid() != 0:
        skip("it needs root")
    shutil.rmtree(BARE, ignore_errors=True)
    for tool, include in (("mmdebstrap", ["--variant=minbase", "--include=python3"]),
                          ("debootstrap", ["--variant=minbase", "--include=python3"])):
        if shutil.which(tool):
            made = subprocess.run([tool, *include, "bookworm", str(BARE)], capture_output=True, text=True, check=False)
            if made.returncode == 0:
                return
            shutil.rmtree(BARE, ignore_errors=True)
            skip(f"{tool} made no root: {(made.stderr.strip().splitlines() or ['?'])[-1]}")
    skip("neither mmdebstrap nor debootstrap is installed")


def inside(kit, out, command, extra=()):
    """Runs a shell command in the root: the kit at /kit, which cannot be written, results at /out, no network."""
    mounts = [f"mount --bind {kit} {BARE}/kit", f"mount -o remount,bind,ro {BARE}/kit", f"mount --bind {out} {BARE}/out",
              f"mount -t proc proc {BARE}/proc", *mount_dev(BARE), f"mount -t tmpfs tmpfs {BARE}/tmp", *extra]
    for folder in ("kit", "out", "fake"):
        (BARE / folder).mkdir(exist_ok=True)
    script = " && ".join(mounts) + f" && exec chroot {BARE} /bin/sh -c '{command}'"
    return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c",
                           f"ip link set lo up 2>/dev/null; {script}"], capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/out", "OUT": "/out", "LANG": "C.UTF-8"})


def check_bare(kit, out):
    done = inside(kit, out, "cd / && /kit/run --budget 300")
    if done.returncode != 0:
        fail(f"the run ends with {done.returncode}", done.stdout + done.stderr)
    result = json.loads((out / "check.json").read_text())
    wrong = [p for p in result["phases"] if p[1] != "SKIPPED" or "no GPU here" not in p[3]]
    if wrong or result["undone"]:
        fail(f"phases that do not end with 'no GPU here': {wrong or result['undone']}", done.stdout + done.stderr)
    return result


def check_old_driver(kit, out, fake):
    (fake / "cuda.c").write_text(FAKE_DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", fake / "libcuda.so.1", fake / "cuda.c"], check=True)
    done = inside(kit, out, "LD_LIBRARY_PATH=/fake /kit/run", [f"mount --bind {fake} {BARE}/fake"])
    about = json.loads((kit / "kit.json").read_text())
    sentence = f"needs NVIDIA's driver {about['driver_name']} or newer"
    if about["least_driver"] > 12040 and (done.returncode != 0 or sentence not in done.stdout):
        fail(f"a driver of version 12.4 is no sentence ({done.returncode})", done.stdout + done.stderr)


def check_files(kit, out):
    done = inside(kit, out, "cd /kit && sha256sum --quiet -c SHA256SUMS && which python3")
    if done.returncode != 0:
        fail("the checksums do not hold", done.stdout + done.stderr)
    done = inside(kit, out, "cd /kit && for f in $(find bin -type f); do echo $f; ldd $f; done")
    if "not found" in done.stdout or done.returncode != 0:
        fail("a library is not found", done.stdout + done.stderr)
    done = inside(kit, out, "for t in gcc cc make nvcc nvidia-smi curl pip3; do which $t; done; true")
    if done.stdout.strip():
        fail(f"the root is not bare: it has {done.stdout.split()}")


def main():
    kit = pathlib.Path(sys.argv[1]).absolute()
    if os.geteuid() != 0 or not shutil.which("unshare"):
        skip("it needs root and unshare")
    make_root()
    with tempfile.TemporaryDirectory(prefix="incipit-kit-") as folder:
        folders = [pathlib.Path(folder) / name for name in ("out", "old", "fake")]
        for path in folders:
            path.mkdir()
        check_files(kit, folders[0])
        result = check_bare(kit, folders[0])
        check_old_driver(kit, folders[1], folders[2])
    print("ok      the kit in a bare Debian root: " + ", ".join(p[0] for p in result["phases"])
          + " end with 'no GPU here', exit 0; a driver of version 12.4 is a sentence, exit 0")


if __name__ == "__main__":
    main()
