#!/usr/bin/env python3
"""How fast a model on a server is converted: beside the same model on the disk and fetched first.

    remote_speed.py PROGRAMS MODEL_DIR [--type TYPE] [--rounds N]

PROGRAMS is the folder of gguf-convert. A server on this machine serves MODEL_DIR by ranges, as fast as it can; each
round runs the directory here, the same over HTTP, and the same with --cache. Prints
medians of wall time and the highest RssAnon of the programs. The outputs must be equal.
"""

import argparse, hashlib, http.server, os, pathlib, statistics, subprocess, tempfile, threading, time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.server.root / self.path.removeprefix(f"/{self.server.root.name}/")
        if self.path == f"/{self.server.root.name}/":
            page = "".join(f'<a href="{name}">x</a>' for name in os.listdir(self.server.root)).encode()
            return self.head(200, len(page), {"Content-Type": "text/html"}) or self.wfile.write(page)
        if not path.is_file():
            return self.head(404, 0, {})
        total = path.stat().st_size
        first, last, status, extra = 0, total - 1, 200, {"ETag": '"1"'}
        if wanted := self.headers.get("Range"):
            a, b = wanted.removeprefix("bytes=").split("-")
            first, last, status = int(a), min(int(b), last), 206
            extra["Content-Range"] = f"bytes {first}-{last}/{total}"
        self.head(status, last - first + 1, extra)
        with open(path, "rb") as file:
            offset, left = first, last - first + 1
            self.wfile.flush()
            while left:
                n = os.sendfile(self.connection.fileno(), file.fileno(), offset, left)
                offset, left = offset + n, left - n

    def head(self, status, n_bytes, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(n_bytes))
        self.end_headers()


def measured(command):
    """Wall seconds and highest RssAnon in MiB of a command."""
    started, peak = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")])
        except (FileNotFoundError, ProcessLookupError):
            pass
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return time.monotonic() - started, peak / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--type", default="f16")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = arguments.model.resolve()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.root = model
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{model.name}"
    with tempfile.TemporaryDirectory(dir=".") as scratch:
        scratch = pathlib.Path(scratch)
        convert = [arguments.programs / "gguf-convert", "hf2gguf"]
        options = ["--type", arguments.type, "-q", "--no-sync", "-o"]
        ways = {
            "directory": lambda at: convert + [model] + options + [scratch / f"directory{at}.gguf"],
            "server": lambda at: convert + [address] + options + [scratch / f"server{at}.gguf"],
            "server, --cache": lambda at: convert + [address, "--cache", scratch / f"cache{at}"] + options + [scratch / f"cache{at}.gguf"],
        }
        results = {way: [] for way in ways}
        digests = set()
        for at in range(arguments.rounds):
            for way, command in ways.items():
                results[way].append(measured([str(word) for word in command(at)]))
            for file in scratch.glob("*.gguf"):
                with open(file, "rb") as opened:
                    digests.add(hashlib.file_digest(opened, "sha256").hexdigest())
                file.unlink()
            subprocess.run(["rm", "-rf", scratch / f"cache{at}"], check=True)
        n_bytes = sum(file.stat().st_size for file in model.iterdir() if file.is_file())
        print(f"{n_bytes / 1e9:.2f} GB as {arguments.type}, medians of {arguments.rounds}")
        for way, runs in results.items():
            seconds = statistics.median(run[0] for run in runs)
            print(f"{way:16} {seconds:6.2f} s  {n_bytes / 1e6 / seconds:6.0f} MB/s  RssAnon {max(run[1] for run in runs):5.0f} MiB")
        if len(digests) != 1:
            raise SystemExit("the outputs differ")


if __name__ == "__main__":
    main()
