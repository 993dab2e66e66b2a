"""make gpu-check and the kit: the commands, the table that the figures of a GPU give, and going on after a kill."""
import argparse
import copy
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import types

import pytest

from conftest import PATIENCE_S, ROOT, wait_for

sys.path.insert(0, str(ROOT / "tests/gpu"))
import bars as gpu_bars  # noqa: E402
import check as gpu_check  # noqa: E402
import kit as gpu_kit  # noqa: E402
import runner  # noqa: E402

BIG = gpu_bars.BIG
ROWS = [
    {"row": "ceiling", "name": "device copy", "gbs": 4300.0},
    {"row": "ceiling", "name": "product", "tflops": 790.0},
    {"row": "ceiling", "name": "bus in", "gbs": 44.0},
    {"row": "ceiling", "name": "bus out", "gbs": 55.0},
    {"row": "decode", "model": BIG, "batch": 1, "context": 1024, "us": 4000.0, "host_us": 9.0},
    {"row": "decode", "model": BIG, "batch": 32, "context": 1024, "us": 6000.0, "host_us": 12.0},
    {"row": "decode", "model": BIG, "batch": 256, "context": 1024, "us": 15500.0, "host_us": 51.0},
    {"row": "decode", "model": BIG, "batch": 256, "context": 8192, "skipped": "more KV than this test's pool"},
    {"row": "decode", "model": BIG + " e4m3/bf16", "batch": 1, "context": 1024, "us": 2500.0, "host_us": 9.0},
    {"row": "decode", "model": BIG + " int4/bf16", "batch": 1, "context": 1024, "us": 2200.0, "host_us": 9.0},
    {"row": "prefill", "model": BIG, "fresh": 1024, "us": 22000.0},
    {"row": "prefix_hit", "model": BIG, "us": 6500.0},
    {"row": "swap", "model": BIG, "out_gbs": 50.0, "in_gbs": 43.0},
    {"row": "server", "model": BIG, "ready_s": 12.0, "cold_ms": 220.0, "hit_ms": 8.0},
    {"row": "peer", "name": "llama step", "model": BIG, "batch": 1, "us": 6000.0},
    {"row": "peer", "name": "llama step", "model": BIG, "batch": 1, "us": 5400.0},
    {"row": "kernel", "name": "decode_attention", "model": BIG, "what": "B=32 L=8192", "us": 300.0,
     "bytes": 1.0737e9, "flops": 1e9},
]


def check_in(folder, **options):
    """A check of this checkout whose results go to a folder of the test."""
    places = runner.Places(ROOT / "tests/gpu")
    defaults = {"budget": 400, "phases": None, "soak": 0, "fresh": False, "out": str(folder), "print_commands": None}
    check = runner.Check(types.SimpleNamespace(**{**defaults, **options}), places)
    check.out.mkdir(exist_ok=True)
    (check.out / "none.log").touch()
    return check


@pytest.fixture
def measured(tmp_path):
    check = check_in(tmp_path / "out")
    check.rows, check.gpu = copy.deepcopy(ROWS), {"name": "NVIDIA H200"}
    return check


# --- figures and bars

def test_each_bar_has_its_figure_and_verdict(measured):
    bars = {b["what"]: b for b in gpu_bars.bars(measured)}
    verdicts = {what: (round(b["figure"], 3), b["holds"]) for what, b in bars.items() if b["figure"] is not None}
    assert verdicts == {
        "8B decode, batch 1, 1k": (88.044, True),  # 15.1 GB at 4.3 TB/s
        "8B decode, batch 32, 1k": (74.823, False),
        "8B decode, batch 256, 1k": (82.932, True),
        "8B prefill 1k": (83.831, True),
        "8B step of 128 on 8k cached": (1.463, False),
        "8B 128 on 8k cached, TTFT over HTTP": (8.0, True),
        "the same over a cold 8k prompt": (0.036, True),
        "8B decode attention, 32 x 8k": (83.233, False),
        "swap in": (43.0, True),  # the bus of that day gives no more
        "swap out": (50.0, True),
        "host per step, batch 256": (51.0, False),
        "8B ready, from page cache": (12.0, True),
        "compiled PyTorch step / ours, batch 1": (1.35, True),  # beside its faster mode
        "8B e4m3/bf16 decode, batch 1, 1k": (75.946, True),  # half of the layers' bytes, all of the head's
        "8B int4/bf16 decode, batch 1, 1k": (51.719, False),
    }
    assert bars["8B prefill 8k"]["holds"] is None
    assert bars["8B decode, batch 1, 1k"]["means"] == "250 tok/s; the bar is 247 here"


def test_bars_move_with_the_card(measured):
    """On an H100 the same percentages are other tokens per second."""
    measured.rows[0]["gbs"], measured.rows[1]["tflops"] = 3000.0, 798.0
    bars = {b["what"]: b for b in gpu_bars.bars(measured)}
    assert bars["8B decode, batch 1, 1k"]["means"].endswith("the bar is 172 here")
    assert bars["8B decode, batch 32, 1k"]["means"].endswith("the bar is 4227 here")
    assert bars["8B decode, batch 256, 1k"]["means"].endswith("the bar is 12756 here")


def test_without_ceilings_there_is_no_percentage(measured):
    measured.rows = measured.rows[2:]
    assert {b["holds"] for b in gpu_bars.bars(measured) if "% of" in b["unit"]} == {None}


def test_the_table_names_what_was_not_measured(measured):
    out = gpu_bars.format_table(measured, gpu_bars.bars(measured))
    assert "8B prefill 8k" in out and "no figure" in out
    assert "decode_attention" in out and "83.2" in out


def test_expectations_are_for_bars_that_exist(measured):
    whats = {b["what"] for b in gpu_bars.bars(measured)}
    for table in json.loads(gpu_bars.EXPECTED.read_text()).values():
        assert set(table) <= whats


# --- phases

def test_a_hung_program_is_ended_and_its_output_is_kept(measured):
    with pytest.raises(runner.Failed, match="ended after"):
        measured.run(["sh", "-c", "echo '{\"row\": \"early\"}'; sleep 600"], 2)
    assert measured.find(row="early")


def test_a_failed_phase_is_reported_and_the_others_run(measured, capsys):
    measured.phase("one", lambda: measured.run(["sh", "-c", "echo 'x: error: broken' >&2; exit 3"], 20))
    measured.phase("two", lambda: "fine")
    assert {name: p["status"] for name, p in measured.phases.items()} == {"one": "FAILED", "two": "ok"}
    assert "broken (exit 3)" in capsys.readouterr().out
    assert "error: broken" in (measured.out / "one.log").read_text()
    assert json.loads((measured.out / "two.json").read_text())["why"] == "fine"


@pytest.mark.parametrize("program, status, word", [
    ("echo 'opening the device: unsupported: no driver here' >&2; exit 1", "SKIPPED", "no driver here (rehearsed"),
    ("kill -SEGV $$", "FAILED", "exit -11"),
    (None, "FAILED", "cannot be started"),
])
def test_a_device_that_crashes_is_not_taken_for_none(measured, monkeypatch, tmp_path, program, status, word):
    for name, text in ("gpu_kernels", program), ("gpu_kernels-shim", "exit 0"):
        if text:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
    measured.places.programs, measured.gpu = tmp_path, None
    monkeypatch.setattr(gpu_check, "has_nvcc", lambda: True)
    measured.phase("device", lambda: gpu_check.device(measured))
    assert measured.phases["device"]["status"] == status and word in measured.phases["device"]["why"]


def test_the_error_of_make_is_reported(measured):
    printed = "make: there is no nvcc\nmake: *** [Makefile:131: flags] Error 1\nmake: Target 'x' not remade because of errors."
    with pytest.raises(runner.Failed, match="there is no nvcc"):
        measured.run(["sh", "-c", f'echo "{printed}" >&2; exit 2'], 20)


def test_a_phase_that_there_is_not_is_refused():
    assert gpu_check.phases_of("steps,server") == ["build", "device", "steps", "server"]
    with pytest.raises(argparse.ArgumentTypeError, match="no phase 'step'"):
        gpu_check.phases_of("step")


def test_what_a_budget_has_no_time_for_stays_to_be_done(tmp_path):
    check = check_in(tmp_path, budget=10)
    check.phase("long", lambda: "done", least=60)
    check.phase("short", lambda: "done", least=5)
    assert list(check.phases) == ["short"]


# --- a rehearsal runs what a card would run

def commands(mode):
    return subprocess.run([sys.executable, ROOT / "tests/gpu/check.py", "--print-commands", mode], capture_output=True,
                          text=True, timeout=PATIENCE_S, check=True, env={**os.environ, "OUT": ""}).stdout.splitlines()


def test_a_rehearsal_differs_from_a_card_by_the_listed_exceptions_alone():
    card, used = commands("card"), set()
    for number, (pattern, replacement, _) in enumerate(gpu_check.EXCEPTIONS):
        if any(re.search(pattern, line) for line in card):
            used.add(number)
        card = ([line for line in card if not re.search(pattern, line)] if replacement is None
                else [re.sub(pattern, replacement, line) for line in card])
    assert card == commands("rehearsal")
    assert used == set(range(len(gpu_check.EXCEPTIONS)))  # an exception that nothing needs is a lie
    assert {line.split(":")[0] for line in card} == set(gpu_check.PHASES) - {"sanitizer"}


def test_no_warning_of_a_foreign_compiler_ends_the_build():
    line = commands("card")[0]
    assert "CFLAGS=-Wno-error" in line and "NVCC_WERROR=" in line


def test_launches_wait_in_tests_of_single_kernels_alone():
    blocking = {line.rsplit("/", 1)[1].split()[0] for line in commands("card") if "CUDA_LAUNCH_BLOCKING=1" in line}
    assert "test_ops_gemv" in blocking and not any(name.startswith("test_cuda_") for name in blocking)


def test_the_tests_that_are_sanitized_first_exist():
    assert set(gpu_check.SANITIZED) <= {t for t in runner.Places(ROOT / "tests/gpu").tests() if runner.is_kernel_test(t)}


def test_what_only_the_shim_can_run_is_left_out():
    lines = (ROOT / "tests/gpu/only_shim.txt").read_text().splitlines()
    left_out = {line.split("\t")[0] for line in lines if not line.startswith("#")}
    sources = {t.stem: t.read_text() for t in (ROOT / "tests/unit/cuda/shim").glob("test_*.c")}
    assert left_out <= set(sources)
    for name, text in sources.items():
        if any(word in text for word in ("engine_fixture.h", "trial_kernels.h", "gang.c")):
            assert name in left_out, f"{name}: list it in tests/gpu/only_shim.txt"
    assert not left_out & set(runner.Places(ROOT / "tests/gpu").tests())


def test_the_device_has_every_function_that_drives_the_shim():
    """Without one, no test of kernels links for a card."""
    declared = set(re.findall(r"(?m)^[a-z].*?\b(shim_\w+)\(", (ROOT / "tests/shim/shim_control.h").read_text()))
    defined = re.findall(r"(?m)^[a-z].*?\b(shim_\w+)\(", (ROOT / "tests/gpu/on_device.c").read_text())
    assert declared <= set(defined), declared - set(defined)
    assert len(defined) == len(set(defined)), sorted(defined)


def test_the_served_prompts_fit_the_random_model():
    """What the server phase asks for, and what make_random_model writes."""
    config = re.search(r'max_position_embeddings\\":(\d+)', (ROOT / "tests/gpu/make_random_model.c").read_text())
    asked = {int(n) for line in commands("card") for n in re.findall(r"--max-model-len (\d+)", line)}
    assert asked and max(asked) <= int(config[1])


# --- a kit, made of scripts

FAKE_GPU = '{"row": "device", "name": "NVIDIA H100", "uuid": "GPU-0"}'


class Kit:
    """The files of a kit whose programs are scripts that note that they ran."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "bin/tests").mkdir(parents=True)
        (folder / "bin/lib").mkdir()
        for name in ("check.py", "runner.py", "bars.py", "expected.json"):
            shutil.copy(ROOT / "tests/gpu" / name, folder)
        (folder / "kit.json").write_text(json.dumps({"toolkit": "13.0", "least_driver": 13000, "driver_name": "580"}))
        self.program("gpu_kernels", f"echo '{FAKE_GPU}'; exit 0")
        for name in ("gpu_steps", "gpu_products", "gpu_soak", "tests/test_ops_one"):
            self.program(name, "exit 0")
        self.program("gpu_soak", 'echo \'{"row": "soak", "steps": 1, "outputs": 1, "worst": 0}\'')

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.folder}/ran\n{text}\n')
        path.chmod(0o755)

    def start(self, *args, **env):
        return subprocess.Popen([sys.executable, str(self.folder / "check.py"), *args], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, env={**os.environ, "OUT": "", **env})

    def run(self, *args, **env):
        process = self.start(*args, **env)
        out, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out

    def ran(self):
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    def results(self):
        return json.loads((self.folder / "out/check.json").read_text())


@pytest.fixture
def kit(tmp_path):
    return Kit(tmp_path / "kit")


def test_a_kit_that_is_killed_in_its_third_phase_goes_on_there(kit):
    kit.program("gpu_steps", "sleep 600")
    first = kit.start()
    wait_for(lambda: any(line.startswith("gpu_steps") for line in kit.ran()), "the third phase")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = kit.ran()
    assert [line.split()[0] for line in before] == ["gpu_kernels", "gpu_products", "tests/test_ops_one", "gpu_steps"]
    kit.program("gpu_steps", "exit 0")
    code, out = kit.run()
    assert "goes on after device, correctness; 'steps' had begun and runs again" in out
    assert kit.ran()[len(before)].startswith("gpu_steps") and not any(
        line.startswith(("gpu_products", "tests/")) for line in kit.ran()[len(before):])
    assert code == 0, out
    names = [p[0] for p in kit.results()["phases"]]
    assert names[:3] == ["device", "correctness", "steps"] and kit.results()["device"]["name"] == "NVIDIA H100"


def test_a_kit_that_is_killed_leaves_no_program_behind(kit):
    kit.program("gpu_steps", f"echo $$ > {kit.folder}/pid; sleep 600")
    first = kit.start()
    wait_for(lambda: (kit.folder / "pid").exists() and (kit.folder / "pid").read_text().strip(), "the program")
    pid = int((kit.folder / "pid").read_text())
    first.send_signal(signal.SIGKILL)
    first.communicate()
    wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists() or "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text(),
             "the program to end")


def test_a_finished_kit_repeats_nothing_unless_asked(kit):
    kit.run()
    before = kit.ran()
    assert "goes on after device" in kit.run()[1] and kit.ran() == before
    assert "from the start" in kit.run("--fresh")[1] and len(kit.ran()) == 2 * len(before)


@pytest.mark.parametrize("state", ["", "{", "[]", '{"phases": 3}', "null", "\x00\xff"])
def test_a_broken_state_begins_again(kit, state):
    (kit.folder / "out").mkdir()
    (kit.folder / "out/state.json").write_bytes(state.encode("latin-1"))
    code, out = kit.run("--phases", "device")
    assert code == 0 and "a run from the start" in out and len(kit.ran()) == 1


def test_a_small_budget_takes_the_phases_of_most_value(kit):
    code, out = kit.run("--budget", "25")
    done = [p[0] for p in kit.results()["phases"]]
    assert code == 0 and done[:2] == ["device", "correctness"] and "steps" not in done and "steps" in kit.results()["undone"]
    kit.run()
    assert "steps" in [p[0] for p in kit.results()["phases"]] and not kit.results()["undone"]


def test_results_go_where_out_names(kit, tmp_path):
    kit.run("--phases", "device", OUT=str(tmp_path / "there"))
    assert {"check.json", "table.txt", "device.json", "device.log", "state.json"} <= set(os.listdir(tmp_path / "there"))
    assert not (kit.folder / "out").exists()


def test_a_kit_without_a_gpu_ends_every_phase_so_and_with_0(kit):
    kit.program("gpu_kernels", "echo 'opening the device: unsupported: no CUDA driver is installed' >&2; exit 1")
    code, out = kit.run()
    phases = kit.results()["phases"]
    assert code == 0, out
    assert len(phases) == len(gpu_check.PHASES) - 1
    for name, status, _, why in phases:
        assert status == "SKIPPED" and ("no GPU here" in why or "is not here" in why), (name, why)


# --- drivers and libraries

def test_an_old_driver_is_a_sentence_and_no_failure(kit, tmp_path):
    """A libcuda.so.1 of version 12.4, of which a kit built with CUDA 13 can make nothing."""
    source = tmp_path / "cuda.c"
    source.write_text("int cuDriverGetVersion(int *v); int cuDriverGetVersion(int *v) { *v = 12040; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    code, out = kit.run(LD_LIBRARY_PATH=str(tmp_path))
    assert code == 0 and not kit.ran(), out
    assert "knows CUDA 12.4" in out and "driver 580 or newer" in out
    assert kit.results()["why_no_gpu"] in out


def test_libraries_of_wheels_are_handed_on_in_order(tmp_path, monkeypatch):
    for part in ("torch/lib", "nvidia/cublas/lib", "nvidia/cu13/lib"):
        (tmp_path / "site-packages" / part).mkdir(parents=True)
    monkeypatch.setenv("INCIPIT_CUDA_LIBRARIES", "/mine")
    found = runner.library_folders([str(tmp_path / "none"), str(tmp_path / "site-packages")])
    assert [f.removeprefix(str(tmp_path)) for f in found] == [
        "/mine", "/site-packages/nvidia/cu13/lib", "/site-packages/nvidia/cublas/lib", "/site-packages/torch/lib"]


def test_site_folders_of_a_virtual_environment_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "lib/python3.12/site-packages"
    folder.mkdir(parents=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert str(folder) in runner.python_folders()


# --- what a kit may contain

@pytest.fixture
def compiled(tmp_path):
    """Compiles a program of one line for a kit in tmp_path, and gives its path there."""
    def compile_one(line, *flags):
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin/program"
        subprocess.run(["cc", "-o", str(path), "-x", "c", "-", "-x", "none", *flags], input=line, text=True, check=True)
        return path
    return compile_one


def test_a_program_of_libc_alone_may_travel(compiled, tmp_path):
    gpu_kit.check_binary(tmp_path, compiled("int main(void) { return 0; }"))


@pytest.mark.parametrize("line, flags, word", [
    (f'const char *p = "{ROOT}/x.c"; int main(void) {{ return !p; }}', [], "has the path"),
    ("int main(void) { return 0; }", ["-Wl,-rpath,/opt/here"], "looks for libraries in /opt/here"),
    ('int z(void); int main(void) { return z(); }', ["HERE/libfound_nowhere.so"], "libfound_nowhere.so"),
])
def test_a_program_that_would_not_run_elsewhere_is_refused(compiled, tmp_path, line, flags, word):
    library = tmp_path / "libfound_nowhere.so"
    subprocess.run(["cc", "-shared", "-x", "c", "-o", str(library), "-"], input="int z(void) { return 0; }", text=True,
                   check=True)
    program = compiled(line, *[f.replace("HERE", str(tmp_path)) for f in flags])
    with pytest.raises(SystemExit, match=word):
        gpu_kit.check_binary(tmp_path, program)


def test_a_kit_of_a_toolkit_names_the_driver_of_its_major_version(monkeypatch):
    monkeypatch.setattr(gpu_kit, "toolkit", lambda nvcc: (12, 9))
    about = gpu_kit.describe("nvcc", "80 90", "80 90")
    assert (about["driver_name"], about["least_driver"], about["sass"]) == ("525", 12000, ["80", "90"])
