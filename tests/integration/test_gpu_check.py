"""The table of make gpu-check: what it makes of the figures that a GPU would give."""
import argparse
import importlib.util
import types

import pytest

from conftest import ROOT

spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tests/gpu/check.py")
gpu_check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_check)

BIG = gpu_check.BIG
ROWS = [
    {"row": "ceiling", "name": "device copy", "gbs": 4300.0},
    {"row": "ceiling", "name": "product", "tflops": 790.0},
    {"row": "ceiling", "name": "bus in", "gbs": 44.0},
    {"row": "ceiling", "name": "bus out", "gbs": 55.0},
    {"row": "decode", "model": BIG, "batch": 1, "context": 1024, "us": 4000.0, "host_us": 9.0},
    {"row": "decode", "model": BIG, "batch": 32, "context": 1024, "us": 6000.0, "host_us": 12.0},
    {"row": "decode", "model": BIG, "batch": 256, "context": 1024, "us": 20000.0, "host_us": 51.0},
    {"row": "decode", "model": BIG, "batch": 256, "context": 8192, "skipped": "more KV than this test's pool"},
    {"row": "session", "model": BIG, "us": 4400.0},
    {"row": "prefill", "model": BIG, "fresh": 1024, "us": 22000.0},
    {"row": "swap", "model": BIG, "out_gbs": 50.0, "in_gbs": 43.0},
    {"row": "server", "model": BIG, "ready_s": 12.0, "cold_ms": 220.0, "hit_ms": 8.0},
    {"row": "peer", "name": "llama step", "model": BIG, "batch": 1, "us": 6000.0},
    {"row": "peer", "name": "llama step", "model": BIG, "batch": 1, "us": 5400.0},
    {"row": "kernel", "name": "decode_attention", "model": BIG, "what": "B=32 L=8192", "us": 300.0,
     "bytes": 1.0737e9, "flops": 1e9},
]


@pytest.fixture
def measured():
    check = gpu_check.Check(types.SimpleNamespace(budget=400, phases=None, soak=0))
    check.rows, check.gpu = list(ROWS), {"name": "a card"}
    return check


def test_each_bar_has_its_figure_and_verdict(measured):
    bars = {b["what"]: b for b in gpu_check.bars(measured)}
    verdicts = {what: (round(b["figure"], 3), b["holds"]) for what, b in bars.items() if b["figure"] is not None}
    assert verdicts == {
        "8B decode, batch 1, 1k": (250.0, True),
        "8B batch 8, 32 in, 128 out": (4.4, True),
        "8B decode, batch 32, 1k": (5333.333, False),
        "8B decode, batch 256, 1k": (12800.0, False),
        "8B prefill 1k": (22.0, True),
        "8B 128 on 8k cached, TTFT over HTTP": (8.0, True),
        "the same over a cold 8k prompt": (0.036, True),
        "decode attention of the copy ceiling": (83.233, False),
        "swap in": (43.0, True),  # the bus of that day gives no more
        "swap out": (50.0, True),
        "host per step, batch 256": (51.0, False),
        "8B ready, from page cache": (12.0, True),
        "compiled PyTorch step / ours, batch 1": (1.35, True),  # beside its faster mode
    }
    assert bars["8B prefill 8k"]["holds"] is None


def test_the_table_names_what_was_not_measured(measured, capsys):
    gpu_check.print_table(measured, gpu_check.bars(measured))
    out = capsys.readouterr().out
    assert "8B prefill 8k" in out and "not measured" in out and "no GPU" not in out
    assert "decode_attention" in out and "83.2" in out


def test_a_hung_program_is_ended_and_its_output_is_kept(measured):
    with pytest.raises(gpu_check.Failed, match="ended after"):
        measured.run(["sh", "-c", "echo '{\"row\": \"early\"}'; sleep 600"], 1)
    assert measured.find(row="early")


def test_a_failed_phase_is_reported_and_the_others_run(measured, capsys):
    measured.phase("one", lambda: measured.run(["sh", "-c", "echo 'x: error: broken' >&2; exit 3"], 20))
    measured.phase("two", lambda: "fine")
    assert [p[:2] for p in measured.phases] == [["one", "FAILED"], ["two", "ok"]]
    assert "broken (exit 3)" in capsys.readouterr().out


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
    monkeypatch.setattr(gpu_check, "PROGRAMS", tmp_path)
    measured.phase("device", lambda: gpu_check.device(measured))
    assert measured.phases[0][1] == status and word in measured.phases[0][3]


def test_the_error_of_make_is_reported(measured):
    printed = "make: there is no nvcc\nmake: *** [Makefile:131: flags] Error 1\nmake: Target 'x' not remade because of errors."
    with pytest.raises(gpu_check.Failed, match="there is no nvcc"):
        measured.run(["sh", "-c", f'echo "{printed}" >&2; exit 2'], 20)


def test_a_phase_that_there_is_not_is_refused():
    assert gpu_check.phases_of("steps,server") == ["build", "device", "steps", "server"]
    with pytest.raises(argparse.ArgumentTypeError, match="no phase 'step'"):
        gpu_check.phases_of("step")
