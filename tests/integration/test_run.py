"""`make run` on a terminal: at most twelve lines, the log in a file, errors where they are seen."""
import os
import pty
import re
import select
import socket
import subprocess
import time
from xml.etree import ElementTree

import pytest

from conftest import BUILD, ROOT

START = ROOT / "deploy/demo/start"


class Terminal:
    """A program on a terminal of its own, in a folder where build/ is."""

    def __init__(self, folder, *command, **environment):
        (folder / "build").mkdir(exist_ok=True)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(str(command[0]), [str(c) for c in command], {**os.environ, "V": "", **environment})
        self.text = ""

    def read_until(self, pattern=None, seconds=60):
        """Up to the pattern, or to the end; lines as they stay on the terminal."""
        end = time.monotonic() + seconds
        while not (pattern and re.search(pattern, self.text)):
            assert select.select([self.fd], [], [], max(0, end - time.monotonic()))[0], self.text
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # all have closed it
                break
            self.text += data.decode().replace("\r\n", "\n")
        return [re.sub(r".*\r(?=.)", "", line) for line in self.text.splitlines()]

    def press_ctrl_c(self):
        os.write(self.fd, b"\x03")

    def end(self):
        self.read_until()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


PORTS = ("--port", 0, "--admin-port", 0, "--worker-threads", 1)


def test_start_shows_few_lines_and_ctrl_c_ends_it_with_one(tmp_path):
    terminal = Terminal(tmp_path, START, BUILD, *PORTS)
    lines = terminal.read_until(r"Ctrl-C ends.*\n")
    assert len(lines) <= 12 - 2, lines  # the packages that are installed, and the build, have a line each
    assert not any(" info " in line for line in lines)
    paste = re.search(r"(?s)curl .*?\]}'", "\n".join(lines))[0]
    answer = subprocess.run(paste, shell=True, capture_output=True, text=True, check=True).stdout
    assert "The age of Zack Blue is 30." in answer
    terminal.press_ctrl_c()
    assert terminal.end() == 0
    assert terminal.read_until()[len(lines):] == ["^CStopped the router and its workers."]
    log = (tmp_path / "build/run.log").read_text()
    assert " info router_listening " in log and " info engine_ready " in log and " info router_draining" in log


def test_start_shows_errors_on_the_terminal(tmp_path):
    terminal = Terminal(tmp_path, START, BUILD, *PORTS, "--model", "nowhere")
    assert terminal.end() == 2
    assert "model folder nowhere" in terminal.text and "build/run.log" in terminal.text


def test_start_names_other_ports_when_one_is_in_use(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        terminal = Terminal(tmp_path, START, BUILD, *PORTS, "--port", taken.getsockname()[1])
        assert terminal.end() == 1
    assert "in use" in terminal.text and "Other ports: make run ARGS=" in terminal.text


def test_start_with_v_1_has_the_whole_log_on_the_terminal(tmp_path):
    terminal = Terminal(tmp_path, START, BUILD, *PORTS, V="1")
    terminal.read_until(r"Ctrl-C ends.*\n")
    terminal.press_ctrl_c()
    assert terminal.end() == 0
    assert " info router_listening " in terminal.text and not (tmp_path / "build/run.log").exists()


@pytest.mark.parametrize("status", [0, 3])
def test_progress_counts_files_in_one_line_and_keeps_errors_and_status(tmp_path, status):
    build = f'echo "  CC   a.c"; echo "  CC   b.c"; echo "b.c:1: error" >&2; echo "  LD   build/x"; exit {status}'
    terminal = Terminal(tmp_path, ROOT / "deploy/demo/progress", 2, "sh", "-c", build)
    assert terminal.end() == status
    assert "b.c:1: error" in terminal.text and "a.c" not in terminal.text
    last = "Built: 2 files compiled." if status == 0 else "The build failed: its errors are above."
    assert terminal.read_until()[-1].strip() == last


def test_the_drawing_is_well_formed_and_small(tmp_path):
    times = tmp_path / "times"
    times.write_text("".join(f"{policy} {question} {20.5 + pair} {pair % 2} {16 * (question - 1)} 1755\n"
                             for policy in ("prefix", "round_robin") for question in (1, 2) for pair in range(25)))
    drawing = subprocess.run([ROOT / "deploy/demo/draw.py", times], capture_output=True, text=True, check=True,
                             env={**os.environ, "NOTE": "a < b"}).stdout
    words = [element.text for element in ElementTree.fromstring(drawing).iter() if element.text]
    assert len(drawing) < 20000 and "32.5 ms" in words and any("a < b" in text for text in words)
