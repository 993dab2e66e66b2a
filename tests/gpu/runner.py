"""Runs the programs of a check on a GPU machine within limits of time, and keeps what they print.

Every finished phase is in the state file before the next one begins, by rename: a run that is killed goes on where it
was. Each phase has a log (the commands and all that they print, as they print it) and a file of its figures.
"""
import ctypes
import glob
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import site
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


class Skipped(Exception):
    """What cannot run here; the phase is done."""


class Failed(Exception):
    """Something is wrong."""


# --- where things are ------------------------------------------------------------------------------------------------

class Places:
    """The folders of a checkout (make gpu-check), or those of a kit (make gpu-kit)."""

    def __init__(self, here=HERE):
        self.is_kit = (here / "kit.json").exists()
        self.root = here if self.is_kit else here.parents[1]
        self.kit = json.loads((here / "kit.json").read_text()) if self.is_kit else {}
        self.scripts = here
        built = self.root / "build/gpu"
        self.programs = here / "bin" if self.is_kit else built / "gpu"
        self.object = here / "bin/lib/incipit_cuda.so" if self.is_kit else built / "incipit_cuda.so"
        self.worker = here / "bin/incipit-worker" if self.is_kit else self.root / "build/release/portable/incipit-worker"
        self.demo_model = here / "model" if self.is_kit else self.root / "deploy/demo/model"
        self.out = here / "out" if self.is_kit else built
        self.expected = here / "expected.json"

    def tests(self):
        """Names of the tests of kernels and of the backend that a card can run."""
        if self.is_kit:
            return sorted(t.name for t in (self.programs / "tests").glob("test_*"))
        lines = (self.scripts / "only_shim.txt").read_text().splitlines()
        left_out = {line.split("\t")[0] for line in lines if not line.startswith("#")}
        tests = (self.root / "tests/unit/cuda/shim").glob("test_*.c")
        return sorted(t.stem for t in tests if t.stem not in left_out)


def is_kernel_test(name):
    """One that launches kernels on a NULL stream and looks at their results at once."""
    return not name.startswith("test_cuda_")


def python_folders():
    """Site folders of this Python, of the python3 in PATH (a virtual environment's) and of $VIRTUAL_ENV."""
    ask = "import site; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))"
    found = site.getsitepackages() + [site.getusersitepackages()] + [p for p in sys.path if p.endswith("-packages")]
    for name in ("python3", "python"):
        path = shutil.which(name)
        if path and os.path.realpath(path) != os.path.realpath(sys.executable):
            try:
                found += subprocess.run([path, "-c", ask], capture_output=True, text=True, timeout=20,
                                        check=True).stdout.split("\n")
            except (OSError, subprocess.SubprocessError):
                pass
    if os.environ.get("VIRTUAL_ENV"):
        found += glob.glob(os.environ["VIRTUAL_ENV"] + "/lib/python3*/*-packages")
    return list(dict.fromkeys(f for f in found if f))


def library_folders(folders):
    """Where wheels keep cuBLASLt and NCCL, in the order in which they are tried, after those that the user names."""
    parts = ("nvidia/cu13/lib", "nvidia/cublas/lib", "nvidia/nccl/lib", "torch/lib")
    named = [f for f in os.environ.get("INCIPIT_CUDA_LIBRARIES", "").split(":") if f]
    return named + [path for part in parts for path in (f"{f}/{part}" for f in folders) if os.path.isdir(path)]


# --- the driver ------------------------------------------------------------------------------------------------------

def driver_version():
    """13000 for CUDA 13.0; None without a driver."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value


def why_driver_is_too_old(kit):
    """A sentence, or None: the kit's object needs a driver of its toolkit's major version."""
    version = driver_version()
    if not kit or not version or version >= kit["least_driver"]:
        return None
    return (f"the driver of this machine knows CUDA {version // 1000}.{version % 1000 // 10} and this kit was built with "
            f"CUDA {kit['toolkit']}: it needs NVIDIA's driver {kit['driver_name']} or newer, or a kit built with CUDA "
            f"{version // 1000} (make gpu-kit NVCC=...)")


# --- one check -------------------------------------------------------------------------------------------------------

def die_with_parent():
    """A check that is killed leaves no program on the device."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Check:
    def __init__(self, options, places=None):
        self.options = options
        self.places = places or Places()
        self.began = time.monotonic()
        self.rows = []  # what the programs measured
        self.phases = {}  # name: {status, seconds, why}
        self.gpu = None  # the row of the device, once it is known
        self.why_no_gpu = "the phase 'device' did not run"
        self.env = dict(os.environ, INCIPIT_GPU_CHECK="1",
                        INCIPIT_CUDA_LIBRARIES=":".join(library_folders(python_folders())))
        self.out = pathlib.Path(options.out)
        self.env.setdefault("CUDA_CACHE_PATH", str(self.out / "cuda-cache"))  # PTX is compiled once
        self.phase_name, self.phase_end, self.phase_rows = "none", float("inf"), 0
        self.is_dry = bool(getattr(options, "print_commands", None))
        self.commands = []  # what a dry run would have run

    # --- time

    def left(self):
        return self.options.budget - (time.monotonic() - self.began)

    def allowed_s(self, limit):
        """Seconds for something that may take `limit`, within the phase and the budget."""
        return max(min(limit, self.left(), self.phase_end - time.monotonic()), 2)

    # --- files

    def machine(self):
        """What must be the same for a state to be gone on with: the cards, and what is run on them."""
        devices = sorted(glob.glob("/proc/driver/nvidia/gpus/*") + glob.glob("/dev/nvidia[0-9]*"))
        digest = hashlib.sha256(repr((devices, driver_version())).encode())
        for path in (self.places.object, self.places.worker):
            if path.exists():
                digest.update(f"{path.stat().st_size} {path.stat().st_mtime_ns}".encode())
        return digest.hexdigest()

    def write(self, name, data):
        self.out.mkdir(parents=True, exist_ok=True)
        new = self.out / (name + ".new")
        new.write_text(data if isinstance(data, str) else json.dumps(data, indent=1) + "\n")
        os.replace(new, self.out / name)

    def save(self, running=None):
        self.write("state.json", {"machine": self.machine(), "running": running, "phases": self.phases, "rows": self.rows,
                                  "device": self.gpu, "why_no_gpu": self.why_no_gpu})

    def resume(self):
        """Goes on with the state of an earlier run. The phases that are done, or a sentence why it is not taken."""
        try:
            state = json.loads((self.out / "state.json").read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return "the state of the run before cannot be read: a run from the start"
        if not isinstance(state, dict) or not {"machine", "running", "phases", "rows", "device", "why_no_gpu"} <= set(state):
            return "the state of the run before is another version's: a run from the start"
        if self.options.fresh or state.get("machine") != self.machine():
            return "a run from the start" if self.options.fresh else "the cards or the programs are others than last time"
        self.rows, self.phases = state["rows"], state["phases"]
        self.gpu, self.why_no_gpu = state["device"], state["why_no_gpu"]
        running = state["running"]
        return (f"goes on after {', '.join(self.phases) or 'nothing'}"
                + (f"; '{running}' had begun and runs again" if running else ""))

    # --- programs

    def program(self, name):
        return self.places.programs / (name if self.gpu else name + "-shim")

    def model(self, name):
        return name if self.gpu else "tiny"

    def note(self, line):
        if self.is_dry:
            self.commands.append(f"{self.phase_name}: {line}")
        else:
            with (self.out / f"{self.phase_name}.log").open("a") as log:
                log.write(f"$ {line}\n")

    def line_of(self, args, limit, env):
        own = [f"{k}={v}" for k, v in (env or {}).items()]
        words = [os.path.relpath(a, self.places.root) if isinstance(a, pathlib.Path) else str(a) for a in args]
        return " ".join(own + [shlex.quote(w) for w in words]) + f"  # {limit:.0f} s"

    def run(self, args, limit, env=None, reads_rows=True):
        """The rows that a program prints, which are kept; or all that it prints. Ended, with its children, at the limit.
        env: what it gets beside this process's environment."""
        self.note(self.line_of(args, limit, env))
        if self.is_dry:
            return []
        out, err = self.out / f"{self.phase_name}.log", self.out / f"{self.phase_name}.err"
        limit, at = self.allowed_s(limit), out.stat().st_size
        name = pathlib.Path(str(args[0])).name
        with out.open("ab") as out_file, err.open("wb") as err_file:
            try:
                process = subprocess.Popen([str(a) for a in args], cwd=self.places.root, env={**self.env, **(env or {})},
                                           stdout=out_file, stderr=err_file, start_new_session=True,
                                           preexec_fn=die_with_parent)
            except OSError as e:
                raise Failed(f"{name} cannot be started: {e.strerror}") from None
            is_late = False
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                is_late = True
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text, errors = out.read_bytes()[at:].decode(errors="replace"), err.read_text(errors="replace")
        if errors:
            with out.open("a") as log:
                log.write(errors)
        err.unlink()
        rows = self.keep_rows(text) if reads_rows else []
        if is_late:
            raise Failed(f"{name}: ended after {limit:.0f} s")
        if process.returncode != 0:
            raise Failed(f"{name}: {self.cause(errors, text)} (exit {process.returncode})")
        return rows if reads_rows else text

    @staticmethod
    def cause(errors, text):
        lines = (errors.strip() or text.strip() or "no word").splitlines()
        own = [line for line in lines if not line.startswith("make: *** [") and "not remade" not in line] or lines
        telling = [line for line in own if "rror" in line or "***" in line] or own[-1:]
        return telling[0][:300]

    def keep_rows(self, text):
        rows = []
        for line in text.splitlines():
            if line.startswith("{"):
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    pass
        self.rows += rows
        return rows

    def find(self, **want):
        """The last row that has these values, or None."""
        for row in reversed(self.rows):
            if all(row.get(k) == v for k, v in want.items()) and "skipped" not in row:
                return row
        return None

    # --- phases

    def needs_gpu(self, rehearsed=""):
        if not self.gpu and not self.is_dry:
            raise Skipped("no GPU here" + (f" ({rehearsed})" if rehearsed else ""))

    def rehearses(self):
        """True where a program takes the card's place. A kit has none: the phase ends."""
        if not self.gpu and self.places.is_kit and not self.is_dry:
            raise Skipped("no GPU here")
        return not self.gpu

    def phase(self, name, fn, limit=600, least=0):
        """One phase, unless an earlier run did it; what the budget has no time for stays to be done."""
        wanted = self.options.phases
        if (wanted and name not in wanted) or name in self.phases:
            return
        if self.is_dry:
            self.phase_name = name
            try:
                fn()
            except Skipped:
                pass
            return
        if self.left() < least:
            print(f"{'LATER':8} {name:12} {0:6.1f} s  out of time: it needs {least:.0f} s or more, and {max(self.left(), 0):.0f} "
                  "are left", flush=True)
            return
        start = time.monotonic()
        self.phase_name, self.phase_end = name, start + limit
        n_before = len(self.rows)
        self.out.mkdir(parents=True, exist_ok=True)
        self.save(running=name)
        (self.out / f"{name}.log").write_text("")
        status, why = "ok", ""
        try:
            why = fn() or ""
        except Skipped as e:
            status, why = "SKIPPED", str(e)
        except Failed as e:
            status, why = "FAILED", str(e)
        self.phases[name] = {"status": status, "seconds": round(time.monotonic() - start, 1), "why": why}
        self.write(f"{name}.json", {"phase": name, **self.phases[name], "device": self.gpu, "rows": self.rows[n_before:]})
        self.save()
        self.phase_end = float("inf")
        print(f"{status:8} {name:12} {self.phases[name]['seconds']:6.1f} s  {why}", flush=True)
