"""Timing of commands, for the bench_*.py programs beside this file: wall time, processor time, and memory."""

import hashlib
import os
import platform
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple


class Run(NamedTuple):
    seconds: float
    processor: float
    """Highest RssAnon (memory that is not a mapped file) of the process and its children, MiB."""
    memory: float
    """Both outputs together."""
    output: str


def cpu_name():
    """The processor and its number of CPUs. Virtual machines hide the model: family and model number say it."""
    try:
        with open("/proc/cpuinfo") as lines:
            rows = [[part.strip() for part in line.split(":", 1)] for line in lines if ":" in line]
    except OSError:
        return platform.processor() or "unknown CPU"
    facts = dict(reversed(rows))
    n_cpus = sum(row[0] == "processor" for row in rows)
    number = f"family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}"
    return f"{facts.get('model name', 'unknown CPU')} ({number}), {n_cpus} CPUs"


def rss_anon(pid):
    """RssAnon of a process and its children, KiB."""
    try:
        with open(f"/proc/{pid}/status") as status:
            own = next((int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return own + sum(rss_anon(child) for child in children.read().split())
    except (OSError, ValueError):
        return 0


def run(command, sync_path=None, env=None, fine=(0,)):
    """Runs a command, and if told to, waits until its output is on the disk. Memory is looked at every 5 ms."""
    command = [str(part) for part in command]
    peak, done = [0], threading.Event()

    def watch(pid):
        while not done.wait(0.005):
            peak[0] = max(peak[0], rss_anon(pid))

    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        watcher = threading.Thread(target=watch, args=(child.pid,))
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode == 0 and sync_path:
            subprocess.run(["sync", sync_path], check=True)
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
        log.seek(0)
        output = log.read().decode(errors="replace")
    if child.returncode not in fine:
        raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}\n{output.strip()[-500:]}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, peak[0] / 1024, output)


def quiet(output):
    """Takes away what the last run wrote, and waits until the disk is quiet."""
    if os.path.exists(output):
        os.remove(output)
    os.sync()


def in_turns(jobs, round_number):
    """The jobs of a round, in both orders: neither program always runs on the other's warm or throttled machine."""
    jobs = list(jobs)
    return jobs if round_number % 2 == 0 else jobs[::-1]


def warm(path):
    """Reads a file, or the files of a directory, into the page cache; the number of bytes."""
    if os.path.isdir(path):
        return sum(warm(entry.path) for entry in os.scandir(path) if entry.is_file())
    n_bytes = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 24):
            n_bytes += len(chunk)
    return n_bytes


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
