#!/usr/bin/env python3
"""Where the minutes of the two commands go: builds programs and tests in an empty folder, runs every test, and prints the
time of each unit of the build and of each test, slowest first. Figures of a busy machine are worth nothing.

Usage: scripts/times.py [--write]   (--write also writes the ten slowest of each into docs/developing.md; the reasons
                                     that are there already stay)
All rows are in target/times/units.tsv and target/times/tests.tsv. Takes as long as scripts/demo.sh and all tests.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/developing.md"
HOME = ROOT / "target/times"
N_SHOWN = 10
START, END = "<!-- times: scripts/times.py --write -->", "<!-- end of times -->"


def build(*arguments):
    """Builds with cargo; returns its messages, the units of its report, and the seconds it took."""
    command = ["cargo", *arguments, "--timings", "--message-format", "json", "--quiet"]
    start = time.monotonic()
    run = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - start
    report = (HOME / "build/cargo-timings/cargo-timing.html").read_text()
    units = json.loads(re.search(r"const UNIT_DATA = (\[.*?\]);\n", report, re.S)[1])
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")], units, seconds


def unit_name(unit):
    return f"{unit['name']}{unit['target'].rstrip()}"


def tests_of(executable, folder):
    """Seconds of each test of an executable, in the order in which they ended, as libtest's JSON gives them."""
    command = [executable, "-Z", "unstable-options", "--format", "json", "--report-time"]
    environment = ENVIRONMENT | {"RUSTC_BOOTSTRAP": "1", "CARGO_MANIFEST_DIR": str(folder)}
    run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    events = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode:
        failed = [event["name"] for event in events if event.get("event") == "failed" and "name" in event]
        sys.exit(f"times: {executable} failed: {', '.join(failed)}")
    return [(event["name"], event["exec_time"]) for event in events if event["type"] == "test" and "exec_time" in event]


def write(path, rows):
    path.write_text("".join(f"{seconds:.2f}\t{name}\n" for name, seconds in rows))


def table(title, rows, reasons):
    lines = [f"| {title} | seconds | why |\n|---|---|---|\n"]
    for name, seconds in rows[:N_SHOWN]:
        lines.append(f"| `{name}` | {seconds:.1f} | {reasons.get(name, 'not looked into')} |\n")
    return "".join(lines)


ENVIRONMENT = os.environ | {"CARGO_TARGET_DIR": str(HOME / "build"), "CARGO_TERM_COLOR": "never"}


def main():
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    subprocess.run(["cargo", "fetch", "--quiet", "--locked"], cwd=ROOT, check=True)
    _, programs, programs_s = build("build", "--bins")
    messages, test_units, tests_s = build("test", "--no-run")
    units = [(unit_name(unit), unit["duration"]) for unit in programs + test_units]
    tests = []
    start = time.monotonic()
    for message in messages:
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            own = folder.name if folder != ROOT else "top"
            tests += [(f"{own}::{name}", s) for name, s in tests_of(message["executable"], folder)]
    running_s = time.monotonic() - start
    units.sort(key=lambda row: -row[1])
    tests.sort(key=lambda row: -row[1])
    write(HOME / "units.tsv", units)
    write(HOME / "tests.tsv", tests)
    cpu = next(line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    summary = (
        f"{time.strftime('%Y-%m-%d')}, {len(os.sched_getaffinity(0))} cores of a {cpu}: the programs take {programs_s:.0f} s to build "
        f"({len(programs)} units), then the tests {tests_s:.0f} s ({len(test_units)} units) and {running_s:.0f} s to run "
        f"({len(tests)} tests, without doc tests).\n"
    )
    print(summary)
    for rows in (units, tests):
        print("".join(f"{seconds:8.1f}  {name}\n" for name, seconds in rows[:N_SHOWN]))
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text()
        before, rest = text.split(START + "\n")
        old, after = rest.split(END)
        reasons = dict(re.findall(r"^\| `(.+?)` \| [\d.]+ \| (.+?) \|$", old, re.M))
        new = f"{summary}\n{table('unit of the build', units, reasons)}\n{table('test', tests, reasons)}"
        PAGE.write_text(f"{before}{START}\n{new}{END}{after}")


main()
