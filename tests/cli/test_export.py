"""`hugeheap export`: what it says of real processes, how, within which time, and to whom."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import exposition
import pytest
import testbed
from fakehost import Host, buddyinfo
from targets import Target, drop, ended, may_read_others

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "prometheus"
MIB = 1 << 20
ARENA = 2 * MIB
NOBODY = 65534
SYS_ADMIN = 21
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# 40 MB of small objects, then told to stay.
HEAP = (
    "rows = [[number] for number in range(400_000)]\n"
    "print('ready', flush=True)\n"
    "import sys; sys.stdin.readline(); print('{}')\n"
)
FORKS = (
    "import os, sys\n"
    "rows = [[number] for number in range(100_000)]\n"
    "reader, writer = os.pipe()\n"
    "child = os.fork()\n"
    "if not child:\n"
    "    more = [[number] for number in range(200_000)]\n"
    "    print(os.getpid(), flush=True); os.close(writer); os.read(reader, 1); os._exit(0)\n"
    "sys.stdin.readline(); os.close(writer); os.waitpid(child, 0); print('{}')\n"
)
# More mappings than are made by accident: neighbours differ in what may be done with them.
MAPPINGS = (
    "import ctypes, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_size_t] * 5\n"
    "page = 4096 * 16\n"
    "base = libc.mmap(None, 10_000 * page, 3, 0x22, 2**64 - 1, 0)\n"
    "libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]\n"
    "for index in range(0, 10_000, 2):\n"
    "    ctypes.memset(base + index * page, 1, 1)\n"
    "    assert libc.mprotect(base + index * page, page, 1) == 0\n"
    "print('ready', flush=True); sys.stdin.readline(); print('{}')\n"
)


@pytest.fixture
def once(hugeheap):
    """Looks once, with a generous budget."""

    def look(*arguments, **options):
        result = hugeheap("export", "--once", "--budget", "30", *arguments, **options)
        assert result.returncode == 0, result.stderr
        return exposition.read(result.stdout, openmetrics="openmetrics" in arguments)

    return look


@pytest.fixture
def heap(program, environment, python):
    """A process on hugeheap that has objects and waits; ended after the test."""
    if not may_read_others():
        pytest.skip("Yama's ptrace_scope keeps processes of one user apart")
    started = []

    def start(code=HEAP, env=(), **options):
        command = (program, "run", "--", python, "-c", code)
        started.append(Target(*command, env={**environment, **dict(env)}, **options))
        return started[-1]

    yield start
    for target in started:
        target.process.kill()
        target.process.communicate()


def skipped(metrics, what, why):
    return metrics.one("hugeheap_scrape_skipped", what=what, why=why)


def test_both_formats_say_the_same(once):
    prometheus, openmetrics = once(), once("--format", "openmetrics")
    stem = {name.removesuffix("_total"): kind for name, kind in prometheus.kinds.items()}
    assert stem == openmetrics.kinds and len(stem) > 40
    assert prometheus.one("hugeheap_host_memory_bytes") == openmetrics.one("hugeheap_host_memory_bytes") > 0
    modes = {dict(labels)["mode"]: value for (name, labels), value in prometheus.items() if name.endswith("thp_mode")}
    assert not modes or sum(modes.values()) == 1


def test_a_running_heap_is_found_and_its_numbers_are_right(once, heap, tmp_path):
    target = heap(env={"HUGEHEAP_TELEMETRY": str(tmp_path)})
    # It is read without its doing anything.
    target.process.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    metrics = once()
    between = time.monotonic()
    record = (tmp_path / f"{target.pid}.hugeheap").read_bytes()
    live = int.from_bytes(record[152:160], sys.byteorder)
    arenas = int.from_bytes(record[80:88], sys.byteorder)

    def of(name, /, **labels):
        return metrics.one(f"hugeheap_heap_{name}", pid=str(target.pid), **labels)

    assert live > 20 * MIB
    assert abs(of("allocated_bytes") - live) < MIB
    assert of("allocated_bytes") <= of("active_bytes") <= of("mapped_bytes")
    assert of("mapped_bytes") == arenas * ARENA + of("metadata_bytes")
    assert of("resident_bytes") >= of("allocated_bytes") - of("retained_bytes") - ARENA
    states = sum(of("arenas", state=state) for state in ("full", "partial", "empty"))
    assert abs(states - arenas) <= 1 + arenas / 16
    assert of("info", state="hooked", level="arenas", policy="auto") == 1
    assert of("fallbacks_total", reason="address_space") == 0
    assert 0 <= of("published_age_seconds") < 3600
    waited = time.monotonic() - between
    later = once().one("hugeheap_heap_published_age_seconds", pid=str(target.pid))
    assert waited <= later - of("published_age_seconds") <= time.monotonic() - begin
    share = metrics.of("hugeheap_heap_coverage_ratio", pid=str(target.pid))
    if share:
        assert share == [pytest.approx(of("huge_bytes") / of("resident_bytes"))]


def test_a_forked_child_shows_its_own(once, heap):
    target = heap(FORKS)
    child, metrics = target.first, once()
    parent = metrics.one("hugeheap_heap_allocated_bytes", pid=str(target.pid))
    assert metrics.one("hugeheap_heap_allocated_bytes", pid=child) > parent + 5 * MIB
    assert metrics.one("hugeheap_heap_forks_total", pid=child) == 1
    target.end()


def test_publishing_can_be_turned_off_and_takes_no_descriptor(once, heap):
    silent = heap(env={"HUGEHEAP_PUBLISH": "0"})
    seen = heap()
    metrics = once()
    assert not metrics.of("hugeheap_heap_info", pid=str(silent.pid))
    assert metrics.of("hugeheap_heap_info", pid=str(seen.pid)) == [1]
    assert len(os.listdir(f"/proc/{silent.pid}/fd")) == len(os.listdir(f"/proc/{seen.pid}/fd"))
    assert "hugeheap-numbers" not in Path(f"/proc/{silent.pid}/maps").read_text()


def test_a_wrong_word_is_told(heap):
    target = heap(env={"HUGEHEAP_PUBLISH": "maybe"}, stderr=subprocess.PIPE)
    _, said = target.process.communicate("\n", timeout=60)
    assert "HUGEHEAP_PUBLISH must be 0 or 1" in said


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE"])
def test_a_program_under_limits_runs_unseen_or_seen_but_runs(heap, limit):
    low = {"RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 16}[limit]
    # Every descriptor is in use before the heap has its first event.
    code = "import os\nif {}:\n try:\n  while True: os.dup(0)\n except OSError: os.close(5)\n".format(
        limit == "RLIMIT_NOFILE"
    )
    number = getattr(resource, limit)
    target = heap(code + HEAP, preexec_fn=lambda: resource.setrlimit(number, (low, low)))
    assert target.first == "ready"
    assert target.end() == {}


def test_the_time_of_a_look_is_told_in_seconds(once):
    begin = time.monotonic()
    metrics = once()
    assert 0 < metrics.one("hugeheap_scrape_seconds") < time.monotonic() - begin
    assert metrics.one("hugeheap_scrape_budget_seconds") == 30


@root
def test_what_page_tables_alone_tell_is_no_number_for_an_alert(once, python):
    """It is the most that can be stranded: all of a sparse heap on OS pages."""
    with testbed.sparse_stays():
        target = Target(python, Path(__file__).with_name("stranded_heap.py"), 20)
        seen = once("--process", target.pid)
        blind = once("--process", target.pid, preexec_fn=drop(SYS_ADMIN))
        said = target.end()
    if said["huge_pages"] < 18:
        pytest.skip("the host is short of huge pages")
    assert 35 * MIB < seen.one("hugeheap_process_stranded_bytes", pid=str(target.pid)) <= 40 * MIB
    assert not blind.of("hugeheap_process_stranded_bytes", pid=str(target.pid))
    assert [skipped(metrics, "stranded", "permission") for metrics in (seen, blind)] == [0, 1]


@root
def test_what_is_not_allowed_is_counted(once, heap):
    target = heap()
    metrics = once("--process", target.pid, user=NOBODY, group=NOBODY, extra_groups=[])
    assert skipped(metrics, "heap", "permission") >= 1
    assert skipped(metrics, "process", "permission") >= 1
    assert not metrics.of("hugeheap_heap_info", pid=str(target.pid))
    assert metrics.of("hugeheap_process_resident_bytes", pid=str(target.pid))


def test_chosen_processes_are_told_by_number_name_and_cgroup(once, heap):
    target = heap()
    pid = str(target.pid)
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    for choice in (pid, f"pid:{pid}", f"name:{name}", f"{name[:4]}*"):
        metrics = once("--process", choice)
        assert metrics.one("hugeheap_process_resident_bytes", pid=pid, name=name) > 20 * MIB
        assert metrics.one("hugeheap_process_huge_bytes", pid=pid) >= 0
    assert not once().of("hugeheap_process_resident_bytes")
    assert not once("--process", "no-such-name").of("hugeheap_process_resident_bytes")
    cgroup = dict(next(labels for (_, labels) in metrics if dict(labels).get("pid") == pid))["cgroup"]
    if cgroup:
        metrics = once("--process", f"cgroup:{cgroup}", "--cgroup", cgroup)
        assert metrics.of("hugeheap_process_resident_bytes", pid=pid)
        # A process has a name of its control group also where no file of that is mounted.
        charged = any(Path(f"/sys/fs/cgroup{file}").exists() for file in (f"{cgroup}/memory.current", f"/memory{cgroup}/memory.usage_in_bytes"))
        assert bool(metrics.of("hugeheap_cgroup_charge_bytes", cgroup=cgroup)) == charged
        assert all(dict(labels).get("cgroup", cgroup).startswith(cgroup) for name, labels in metrics if "cgroup_" in name)


def test_a_name_with_quotes_is_escaped(once, python):
    code = "import sys; open('/proc/self/comm', 'w').write('a \"b\" \\\\\\n'); print(1, flush=True); sys.stdin.readline(); print('{}')"
    target = Target(python, "-c", code)
    metrics = once("--process", target.pid)
    names = {dict(labels)["name"] for name, labels in metrics if name == "hugeheap_process_resident_bytes"}
    # As it was set, and not as the kernel writes it in /proc/PID/status.
    assert names == {Path(f"/proc/{target.pid}/comm").read_text().removesuffix("\n")} == {'a "b" \\\n'}
    target.end()


def test_a_process_of_ten_thousand_mappings_keeps_the_budget(hugeheap, once, python):
    target = Target(python, "-c", MAPPINGS)
    assert len(Path(f"/proc/{target.pid}/maps").read_text().splitlines()) > 10_000
    # With time for all of it, all of it is there.
    whole = once("--process", target.pid)
    assert skipped(whole, "process", "budget") == 0
    assert whole.one("hugeheap_process_huge_bytes", pid=str(target.pid)) >= 0
    # A millisecond is not enough for ten thousand mappings anywhere. It is said, and the rest is whole.
    result = hugeheap("export", "--once", "--budget", "0.001", "--process", target.pid)
    target.end()
    assert result.returncode == 0, result.stderr
    metrics = exposition.read(result.stdout)
    left_out = sum(skipped(metrics, what, "budget") for what in ("heap", "process"))
    assert left_out >= 1
    assert not metrics.of("hugeheap_process_huge_bytes", pid=str(target.pid))
    assert metrics.one("hugeheap_host_memory_bytes") > 0


def test_a_name_that_no_process_has_is_told_and_the_others_are_exported(hugeheap, heap):
    target = heap()
    result = hugeheap("export", "--once", "--process", "no-such-program", "--process", target.pid, "--process", "nor-this*")
    assert result.returncode == 0 and f'pid="{target.pid}"' in result.stdout
    told = [line for line in result.stderr.splitlines() if "no process is meant by" in line]
    assert [line.split("--process ")[1].split()[0] for line in told] == ["no-such-program", "nor-this*"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--listen"),
        (("--once", "--listen", ":9"), "cannot be used with"),
        (("--once", "--every", "5"), "cannot be used with"),
        (("--once", "--process", ""), "name a process"),
        (("--once", "--process", "pid:x"), "pid:x"),
        (("--once", "--cgroup", "app"), "begins with /"),
        (("--listen", "9837"), "127.0.0.1:9837"),
        (("--once", "--budget", "0"), "seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused(hugeheap, arguments, said):
    result = hugeheap("export", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


def test_json_is_refused(hugeheap):
    result = hugeheap("--json", "export", "--once")
    assert result.returncode == 2 and "not JSON" in result.stderr


def test_no_processes_no_metrics(hugeheap, tmp_path):
    result = hugeheap("--root", tmp_path, "export", "--once")
    assert result.returncode == 3 and "no list of processes" in result.stderr


# A file for node_exporter.


def test_the_file_is_replaced_as_a_whole(hugeheap, tmp_path):
    place = tmp_path / "hugeheap.prom"
    place.write_text("old")
    result = hugeheap("export", "--textfile", tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert exposition.read(place.read_text()).one("hugeheap_host_memory_bytes") > 0
    assert place.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["hugeheap.prom"] or sorted(os.listdir(tmp_path)) == ["hugeheap.prom", "tmp"]


def test_a_file_that_cannot_be_written_is_told_and_the_old_one_stays(hugeheap, tmp_path):
    missing = hugeheap("export", "--textfile", tmp_path / "nowhere")
    assert missing.returncode == 2 and "is not there" in missing.stderr
    place = tmp_path / "hugeheap.prom"
    place.write_text("old")
    in_a_file = hugeheap("export", "--textfile", place)
    assert in_a_file.returncode == 2 and "not a directory" in in_a_file.stderr
    # As on a full disk: writing fails in the middle.
    full = hugeheap(
        "export",
        "--textfile",
        tmp_path,
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert full.returncode == 3 and "cannot be written" in full.stderr
    assert place.read_text() == "old"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_the_file_is_written_again_and_again(start, tmp_path):
    process = start("export", "--textfile", tmp_path, "--every", "0.01")
    place, seen = tmp_path / "hugeheap.prom", set()
    while len(seen) < 3:
        assert process.poll() is None
        if place.exists():
            exposition.read(place.read_text())
            seen.add(place.stat().st_ino)
    process.terminate()
    assert process.wait(60) == 0


def test_a_file_that_could_not_be_written_once_is_written_when_it_can_be_again(start, tmp_path):
    """It is a full disk, mostly, which somebody empties."""
    directory, away = tmp_path / "metrics", tmp_path / "away"
    directory.mkdir()
    process = start("export", "--textfile", directory, "--every", "0.05")
    until = time.monotonic() + 60
    while not (directory / "hugeheap.prom").exists():
        assert process.poll() is None and time.monotonic() < until
    directory.rename(away)
    assert f"{directory} is not there" in process.stderr.readline()
    directory.mkdir()
    while not (directory / "hugeheap.prom").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) == 0


# HTTP.


class Server:
    def __init__(self, process):
        self.process = process
        line = process.stderr.readline()
        self.url = re.search(r"http://\S+/metrics", line)[0]
        host, _, port = self.url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
        self.address = (host, int(port))

    def get(self, path="/metrics", method="GET", **headers):
        request = urllib.request.Request(self.url.removesuffix("/metrics") + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def connect(self):
        return socket.create_connection(self.address, timeout=60)


@pytest.fixture
def server(start):
    return Server(start("export", "--listen", "127.0.0.1:0"))


def test_a_scrape_gets_the_format_it_likes(server):
    status, headers, text = server.get()
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(headers["Content-Length"]) == len(text.encode())
    exposition.read(text)
    # What Prometheus sends.
    accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    status, headers, text = server.get(Accept=accept)
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "application/openmetrics-text")
    exposition.read(text, openmetrics=True)


def test_other_requests_are_answered_as_what_they_are(server):
    assert server.get("/")[0] == 200
    assert server.get("/elsewhere")[0] == 404
    status, headers, _ = server.get(method="POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")

    def raw(request):
        with server.connect() as client:
            client.sendall(request)
            return client.makefile("rb").read().split(b"\r\n")[0]

    assert raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n") == b"HTTP/1.1 400 Bad Request"
    assert raw(b"GET /" + b"x" * 10_000) == b"HTTP/1.1 431 Request Header Fields Too Large"


def test_clients_that_do_nothing_do_not_hold_up_a_scrape(server):
    # More than there are workers: some send nothing, some half a request, some never read their answer.
    idle = [server.connect() for _ in range(30)]
    for client in idle[:10]:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
    for client in idle[10:20]:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert server.get()[0] == 200
    for client in idle:
        client.close()
    # Gone before the answer.
    with server.connect() as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert server.get()[0] == 200


def test_hundreds_that_send_half_a_request_do_not_hold_up_a_scrape_and_are_dropped(server):
    """With 16 threads that waited for a request each, 200 kept a scrape waiting for 25 s, and whoever asked after it."""
    slow = [server.connect() for _ in range(200)]
    for client in slow:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
    begin = time.monotonic()
    assert server.get()[0] == 200
    # None of them has been given up yet: the scrape did not wait for that.
    assert time.monotonic() - begin < 2 or not all(map(closed, slow))
    # A byte now and then is no request: who sends one is dropped as who sends nothing.
    until = time.monotonic() + 60
    while not all(map(closed, slow)):
        assert time.monotonic() < until, "clients that never finish are kept"
        for client in slow:
            with contextlib.suppress(OSError):
                client.send(b"x")
        time.sleep(0.2)
    assert server.get()[0] == 200
    for client in slow:
        client.close()


def closed(client):
    """Whether the server has ended a connection on which it said nothing."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_more_clients_than_places_wait_or_lose_theirs_and_a_scrape_is_served(server):
    """The one that has not said for the longest time what it wants makes room."""
    idle = [server.connect() for _ in range(400)]
    assert server.get()[0] == 200
    # None that reads its answer is held up by those that do not.
    for client in idle[300:]:
        with contextlib.suppress(OSError):
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert server.get()[0] == 200
    for client in idle:
        client.close()


def test_who_has_one_of_all_places_keeps_it_until_somebody_comes(start):
    few = (24, 24)
    server = Server(start("export", "--listen", "127.0.0.1:0", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, few)))
    places = 24 - 8 - len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
    begin = time.monotonic()
    clients = [server.connect() for _ in range(places)]
    for _ in range(2 * places):
        # What wakes the server and is no request.
        clients[-1].sendall(b"G")
        time.sleep(0.01)
    kept = [not closed(client) for client in clients]
    assert time.monotonic() - begin > 1.5 or all(kept), kept
    assert server.get()[0] == 200
    for client in clients:
        client.close()


def test_an_answer_to_head_has_no_body(server):
    """It had one, which the next program in a row takes for an answer."""
    with server.connect() as client:
        client.sendall(b"HEAD /metrics HTTP/1.1\r\n\r\n")
        head = client.makefile("rb").read()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n") and head.count(b"\r\n\r\n") == 1


def test_many_scrapes_at_once_are_all_served(server):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(server.get()[0])) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 24


def test_a_server_ends_when_it_is_told_to(server):
    server.process.terminate()
    assert server.process.wait(60) == 0


def test_a_server_without_descriptors_says_so_once_and_serves_when_it_has_some(start):
    """It said so five times a second and thread, for as long as it lasted."""
    enough = (64, 64)
    process = start("export", "--listen", "127.0.0.1:0", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, enough))
    url = process.stderr.readline().split()[-1]
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (6, 64))
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60):
        assert "no connection can be accepted now: Too many open files" in process.stderr.readline()
        # It was refused several times by then.
        until = time.monotonic() + 60
        while max(switches(path) for path in Path(f"/proc/{process.pid}/task").iterdir()) < 5:
            assert time.monotonic() < until
            time.sleep(0.05)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, enough)
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == ""


@pytest.mark.parametrize("few", [4, 5, 8])
@pytest.mark.parametrize("way", [("--once",), ("--listen", "127.0.0.1:0"), ("--textfile", ".")])
def test_a_look_without_descriptors_is_refused_and_not_made_with_less(hugeheap, way, few, tmp_path):
    """With four it printed half of the metrics, and the status was 0."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))  # noqa: E731
    ran = hugeheap("export", *way, preexec_fn=limit, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (3, ""), ran
    assert re.fullmatch(r"hugeheap: error: nothing was done: this opens 8 files at a time, .*ulimit -n.*\n", ran.stderr), ran.stderr
    assert not list(tmp_path.glob("*.prom"))


def test_a_server_whose_limit_was_lowered_says_so_to_who_asks(start):
    """An alert sees a scrape that failed, and would not miss metrics that are not there."""
    server = Server(start("export", "--listen", "127.0.0.1:0"))
    used = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 3, 64))
    status, _, text = server.get()
    assert status == 500 and text.startswith("nothing was read: this opens 8 files at a time, and fewer can be opened: the limit on open files is"), text
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    assert server.get()[0] == 200


def switches(task):
    """How often a thread waited."""
    return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.M).group(1))


def test_an_address_that_cannot_be_had_is_told(hugeheap, server):
    host, port = server.address
    taken = hugeheap("export", "--listen", f"{host}:{port}")
    assert taken.returncode == 3 and "somebody else does already" in taken.stderr
    foreign = hugeheap("export", "--listen", "192.0.2.1:9837")
    assert foreign.returncode == 3 and "does not have that address" in foreign.stderr


# The reference and the examples.


def test_every_metric_is_in_the_reference(once):
    text = (EXAMPLES.parents[1] / "docs" / "reference" / "export.md").read_text()
    documented = re.findall(r"^\| `(hugeheap_[a-z_]+)` \| ([^|]*) \|", text, re.M)
    metrics = once()
    assert sorted(name for name, _ in documented) == sorted(metrics.kinds)
    for name, words in documented:
        named = set(re.findall(r"`(\w+)`", words))
        assert {label for has in (dict(labels) for found, labels in metrics if found == name) for label in has} <= named


def names_in(expression):
    return set(re.findall(r"\bhugeheap_[a-z_]+", expression))


def family_of(name, kinds):
    """The metric that a sample of a histogram belongs to, or the name."""
    stem = re.sub("_(bucket|sum|count)$", "", name)
    return stem if kinds.get(stem) == "histogram" else name


def expressions():
    for panel in json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in json.loads((EXAMPLES / "dashboard.json").read_text())["templating"]["list"]:
        yield variable["query"] if isinstance(variable["query"], str) else variable["query"]["query"]
    yield from re.findall(r"^ +expr: (?:>-\n)?((?:.+\n(?: {10,}.+\n)*))", (EXAMPLES / "alerts.yml").read_text(), re.M)


def test_dashboard_and_alerts_name_metrics_that_exist(once):
    kinds = once().kinds
    used = set()
    for expression in expressions():
        used |= {family_of(name, kinds) for name in names_in(expression)}
    assert used <= set(kinds), sorted(used - set(kinds))
    assert len(used) > 25
    panels = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    # Of a counter only its growth says anything.
    for expression in expressions():
        for name in names_in(expression):
            grows = re.search(rf"(?:rate|increase)\({name}\b", expression)
            assert (kinds[family_of(name, kinds)] in ("counter", "histogram")) == bool(grows), expression


def test_the_pauses_of_a_collector_are_a_histogram(once, program, environment):
    if not may_read_others():
        pytest.skip("Yama's ptrace_scope keeps processes of one user apart")
    # Trees for longer than anybody waits.
    command = [program, "bench", "worker", "gc", "binary-trees", "24", "-"]
    worker = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        labels = {"pid": str(worker.pid)}
        lengths = "hugeheap_heap_gc_pause_length_seconds"
        while True:
            assert worker.poll() is None, "it ended before its pauses were seen"
            metrics = once()
            if any(metrics.of(f"{lengths}_count", **labels)):
                break
    finally:
        worker.kill()
        worker.wait()
    # That buckets rise and all are counted is checked when they are read.
    assert len(metrics.of(f"{lengths}_bucket", **labels)) == 24
    assert metrics.one(f"{lengths}_count", **labels) <= metrics.one("hugeheap_heap_gc_pauses_total", **labels)
    assert metrics.one(f"{lengths}_sum", **labels) == metrics.one("hugeheap_heap_gc_pause_seconds_total", **labels) > 0


def test_a_real_prometheus_takes_metrics_and_alerts(hugeheap):
    promtool = os.environ.get("HUGEHEAP_TEST_PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (apt install prometheus)")
    text = hugeheap("export", "--once").stdout
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, ""), checked
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        checked = subprocess.run([promtool, "check", kind, EXAMPLES / name], capture_output=True, text=True)
        assert checked.returncode == 0, checked


def test_a_process_that_is_gone_is_left_out(once):
    gone = ended()
    assert not once("--process", gone).of("hugeheap_process_resident_bytes", pid=str(gone))


def test_a_host_that_is_known_is_told_of_in_bytes_and_shares(once, tmp_path):
    """Names of metrics have their unit; an alert that compares them is silent where one is told in another."""
    host = Host(tmp_path / "host")
    # 100 OS pages alone, and ten blocks of a huge page.
    host.write("proc/buddyinfo", buddyinfo(100, 0, 0, 0, 0, 0, 0, 0, 0, 10))
    host.write("proc/pressure/memory", "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=2.50 avg60=0.00 avg300=0.00 total=0")
    for pid, name, tables, pool, thp in ((77, "large", 4096, 0, 0), (78, "small", 8, 8192, 1)):
        fields = f"VmRSS:\t 2048 kB\nVmPTE:\t{tables} kB\nHugetlbPages:\t{pool} kB\nTHP_enabled:\t{thp}"
        host.write(f"proc/{pid}/status", f"Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{pid}\n{fields}")
    host.pool("2048kB", total=10, free=4, reserved=1)
    metrics = once("--process", "large", "--process", "small", "--root", host.root)

    assert metrics.one("hugeheap_host_free_bytes", blocks="small") == 100 * 4096
    assert metrics.one("hugeheap_host_free_bytes", blocks="huge") == 10 * ARENA
    assert metrics.one("hugeheap_host_memory_bytes") == 16 << 30
    assert metrics.one("hugeheap_host_memory_available_bytes") == 12 << 30
    pool = [metrics.one("hugeheap_pool_pages", size=str(ARENA), state=state) for state in ("total", "free", "reserved", "surplus")]
    assert pool == [10, 3, 1, 0], "of the four that nobody has, one is promised"
    faults = [metrics.one("hugeheap_host_huge_page_faults_total", size=str(ARENA), result=result) for result in ("huge", "fallback")]
    assert faults == [1000, 10]
    assert metrics.one("hugeheap_host_memory_pressure_ratio", tasks="some") == 0.125
    assert metrics.one("hugeheap_host_memory_pressure_ratio", tasks="all") == 0.025
    assert metrics.one("hugeheap_process_resident_bytes", name="small") == 10 * MIB, "with pages of a pool"
    assert [metrics.one("hugeheap_process_thp", name=name) for name in ("large", "small")] == [0, 1]
