"""tests/gpu/sass, the gate on the kernels' machine code, on listings made here: what it passes, and what it must refuse."""
import os
import stat
import subprocess
import sys

import pytest

from conftest import ROOT

LOAD = "LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64]"
COPY = "LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64]"


def listing(code, registers=50, stack=0):
    """What cuobjdump writes of one kernel; `code` has (instruction, scoreboard it sets or 7, scoreboards it waits for)."""
    lines = [" Function kernel:", f"  REG:{registers} STACK:{stack} SHARED:0 LOCAL:0 CONSTANT[0]:632", "\t\tFunction : kernel"]
    for n, (text, sets, waits) in enumerate(code):
        control = sets << 46 | sum(1 << b for b in waits) << 52
        lines += [f"        /*{n * 16:04x}*/   {text} ;   /* 0x0000000000000000 */", f"   /* 0x{control:016x} */"]
    return "\n".join(lines) + "\n"


def plain(*texts):
    return [(text, 7, ()) for text in texts]


# Three stages are asked for; a turn waits for the oldest and asks for it again.
RING = plain(COPY, "LDGDEPBAR", COPY, "LDGDEPBAR", COPY, "LDGDEPBAR",
             "DEPBAR.LE SB0, 0x2", "FFMA R1, R1, R1, R1", COPY, "LDGDEPBAR", "@!P0 BRA 0x60", "EXIT", "BRA 0xc0")
# Two sets of registers whose loads share a scoreboard; and with one each.
SHARED_BOARD = [(LOAD, 5, ()), (LOAD, 5, ()), ("FFMA R1, R4, R4, R1", 7, (5,)), (LOAD, 5, ()),
                ("FFMA R1, R8, R8, R1", 7, (5,)), (LOAD, 5, ()), ("@!P0 BRA 0x20", 7, ()), ("EXIT", 7, ())]
OWN_BOARDS = [(LOAD, 4, ()), (LOAD, 5, ()), ("FFMA R1, R4, R4, R1", 7, (4,)), (LOAD, 4, ()),
              ("FFMA R1, R8, R8, R1", 7, (5,)), (LOAD, 5, ()), ("@!P0 BRA 0x20", 7, ()), ("EXIT", 7, ())]
BYTE_STORES = plain("STG.E.U8 desc[UR4][R2.64], R1", "@!P0 BRA 0x0", "EXIT")


def run(folder, text, row, **environment):
    tool = folder / "cuobjdump"
    (folder / "listing").write_text(text)
    tool.write_text(f"#!/bin/sh\ncase $3 in sm_90) cat {folder}/listing;; esac\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (folder / "table").write_text(row + "\n" if row else "")
    return subprocess.run([sys.executable, ROOT / "tests/gpu/sass", folder / "table", "object"], capture_output=True, text=True,
                          check=False, env={**os.environ, "CUOBJDUMP": str(tool), **environment})


@pytest.mark.parametrize("code, row", [
    (RING, "kernel sm_90 56 1024 0"),
    (OWN_BOARDS, "kernel sm_90 56 512 0"),
    (SHARED_BOARD, "kernel sm_90 56 0 0"),
    (BYTE_STORES, "kernel sm_90 56 - 1"),
])
def test_a_kernel_within_its_row_passes_and_is_what_update_writes(tmp_path, code, row):
    assert run(tmp_path, listing(code), row).returncode == 0
    assert run(tmp_path, listing(code), "", UPDATE="1").returncode == 0
    assert (tmp_path / "table").read_text().split("\n")[1] == row


@pytest.mark.parametrize("text, row, why", [
    (listing(SHARED_BOARD), "kernel sm_90 56 512 0", "0 bytes of a warp left on their way"),
    (listing(plain(*(t.replace("0x2", "0x0") for t, _, _ in RING))), "kernel sm_90 56 1024 0", "0 bytes of a warp left"),
    (listing(plain("EXIT")), "kernel sm_90 56 1024 0", "0 bytes of a warp left"),
    (listing(RING, registers=57), "kernel sm_90 56 1024 0", "57 registers, at most 56"),
    (listing(RING, stack=8), "kernel sm_90 56 1024 0", "8 bytes of stack"),
    (listing(RING + plain("STL [R1], R2")), "", "1 loads and stores of spilled registers"),
    (listing(BYTE_STORES), "kernel sm_90 56 - 0", "1 stores of single bytes"),
])
def test_a_kernel_outside_its_row_fails_and_the_reason_is_printed(tmp_path, text, row, why):
    result = run(tmp_path, text, row)
    assert result.returncode == 1 and why in result.stdout, result


def test_a_kernel_without_a_row_is_noted(tmp_path):
    result = run(tmp_path, listing(RING), "")
    assert result.returncode == 0 and "not in" in result.stdout and "kernel sm_90" in result.stdout
