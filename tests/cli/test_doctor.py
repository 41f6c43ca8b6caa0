"""`hugeheap doctor`: every finding is provoked, by a directory that plays a host, or by a process that is really so.

Findings about calls and counters of the running kernel are provoked beside their rules in Rust; `test_every_finding_is_provoked` looks there.
"""

import json
import os
import re
import resource
import subprocess
import threading
from pathlib import Path

import pytest
import testbed
from fakehost import GIB, POOLS, THP, Host, buddyinfo, meminfo
from targets import kernel_thread

ROOT = Path(__file__).resolve().parents[2]
DOCTOR = ROOT / "crates/hugeheap-cli/src/doctor"
# Findings of the running kernel, which a directory cannot play: here or not, whatever the test does.
OF_THE_KERNEL = {"HH-COUNTERS-MISSING", "HH-COUNTERS-DENIED", "HH-KERNEL-NO-COLLAPSE", "HH-KERNEL-NO-SPLIT", "HH-KERNEL-NO-SCAN"}
MODES = "always madvise never"
DEFRAGS = "always defer defer+madvise madvise never"


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path / "host")


@pytest.fixture
def doctor(hugeheap):
    """The findings by code, and the exit status."""

    def doctor(*arguments, root=None, **options):
        words = ["--root", root] if root else []
        result = hugeheap(*words, "doctor", "--json", *arguments, **options)
        document = json.loads(result.stdout)
        assert document["schema"] == "hugeheap.doctor/1"
        found = {finding["code"]: finding for finding in document["findings"]}
        assert len(found) == len(document["findings"]) or "HH-POOL-FORK" in found
        bad = document["errors"] + document["warnings"] > 0
        assert result.returncode == (1 if bad else 0), result.stderr
        return {code: finding for code, finding in found.items() if code not in OF_THE_KERNEL}

    return doctor


def chosen(words, word):
    return " ".join(f"[{one}]" if one == word else one for one in words.split())


def small_pool(host, **numbers):
    host.pool("2048kB", **numbers)


def two_nodes(host, first, second):
    host.node(0)
    host.node(1)
    small_pool(host, total=first + second, free=0)
    host.pool("2048kB", total=first, node=0)
    host.pool("2048kB", total=second, node=1)


def full_node(host):
    host.node(0)
    host.node(1, free=GIB // 4)


def tight(host):
    host.write("sys/fs/cgroup/memory.max", (1 << 29) + (16 << 20))


def limited_pool(host, name, size):
    small_pool(host, total=100, free=50)
    host.write(f"sys/fs/cgroup/hugetlb.2MB.{name}", size)


def limited_pool_v1(host):
    small_pool(host, total=100, free=50)
    host.write("proc/self/cgroup", "4:memory:/\n3:hugetlb:/pod/one\n0::/")
    host.write("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb")
    host.write("sys/fs/cgroup/hugetlb/pod/one/hugetlb.2MB.limit_in_bytes", 9223372036854771712)
    host.write("sys/fs/cgroup/hugetlb/pod/hugetlb.2MB.limit_in_bytes", 10 << 20)


HOSTS = {
    "HH-THP-MISSING": lambda host: host.remove(THP),
    # Reading a directory is what fails for root, too.
    "HH-THP-CLOSED": lambda host: (host.remove(f"{THP}/enabled"), host.path(f"{THP}/enabled").mkdir()),
    "HH-THP-NEVER": lambda host: host.write(f"{THP}/enabled", chosen(MODES, "never")),
    "HH-THP-SIZE-NEVER": lambda host: host.write(f"{THP}/hugepages-2048kB/enabled", chosen("always inherit madvise never", "never")),
    "HH-THP-ALWAYS": lambda host: host.write(f"{THP}/enabled", chosen(MODES, "always")),
    "HH-DEFRAG-ALWAYS": lambda host: host.write(f"{THP}/defrag", chosen(DEFRAGS, "always")),
    "HH-DEFRAG-NONE": lambda host: host.write(f"{THP}/defrag", chosen(DEFRAGS, "defer")),
    "HH-KHUGEPAGED-SLOW": lambda host: host.write(f"{THP}/khugepaged/pages_to_scan", 16),
    "HH-KHUGEPAGED-NO-DEFRAG": lambda host: host.write(f"{THP}/khugepaged/defrag", 0),
    "HH-KHUGEPAGED-FILLS": lambda host: host.write(f"{THP}/khugepaged/max_ptes_none", 511),
    "HH-MTHP-ON": lambda host: host.write(f"{THP}/hugepages-64kB/enabled", chosen("always inherit madvise never", "inherit")),
    "HH-POOL-USED-UP": lambda host: small_pool(host, total=10, free=3, reserved=3),
    "HH-POOL-IDLE": lambda host: small_pool(host, total=1000, free=900),
    "HH-POOL-LIMIT": lambda host: limited_pool(host, "max", 100 << 20),
    "HH-POOL-UNEVEN": lambda host: two_nodes(host, 100, 10),
    "HH-POOL-FORK": lambda host: small_pool(host, total=10, free=5),
    "HH-FRAGMENTED": lambda host: host.write("proc/buddyinfo", buddyinfo(100000, 100000, 0, 0, 0, 0, 0, 0, 0, 0, 1)),
    "HH-MEMORY-LOW": lambda host: host.write("proc/meminfo", meminfo(available=GIB // 2)),
    "HH-NODE-FULL": full_node,
    "HH-CGROUP-TIGHT": tight,
    "HH-SYS-READ-ONLY": lambda host: host.write("proc/self/mountinfo", "24 1 0:22 / /sys ro,nosuid - sysfs sysfs ro"),
    "HH-CAPABILITY-MISSING": lambda host: host.write("proc/self/status", "CapEff:\t00000000a80425fb"),
    "HH-FREE-PAGE-REPORTING": lambda host: host.virtio(),
    "HH-NESTED-PAGING": lambda host: host.write("proc/cpuinfo", "model name : Test CPU\nflags : fpu hypervisor"),
}
# What else is true of a host that has the finding.
ALONG = {
    "HH-POOL-USED-UP": {"HH-POOL-FORK"},
    "HH-POOL-IDLE": {"HH-POOL-FORK"},
    "HH-POOL-LIMIT": {"HH-POOL-FORK"},
    "HH-POOL-UNEVEN": {"HH-POOL-FORK", "HH-POOL-USED-UP"},
}


def test_a_healthy_host_has_no_findings(doctor, host):
    assert doctor(root=host.root) == {}


@pytest.mark.parametrize("features", ["1111101111", "11111", ""])
def test_a_balloon_that_does_not_report_is_no_finding(doctor, host, features):
    host.virtio(features=features)
    assert doctor(root=host.root) == {}


def test_another_device_with_the_same_bit_is_no_finding(doctor, host):
    host.virtio(device="0x0002")
    assert doctor(root=host.root) == {}


@pytest.mark.parametrize("code", HOSTS)
def test_findings_of_a_host(doctor, host, code):
    HOSTS[code](host)
    found = doctor(root=host.root)
    assert set(found) == {code} | ALONG.get(code, set())
    assert all("\n" not in finding["what"] + finding["fix"] and finding["fix"] for finding in found.values())


@pytest.mark.parametrize(
    ("play", "kind"),
    [(lambda host: limited_pool(host, "rsvd.max", 1 << 20), "mmap fails"), (limited_pool_v1, "SIGBUS")],
)
def test_limits_on_pools_of_both_kinds_and_versions(doctor, host, play, kind):
    play(host)
    assert kind in doctor(root=host.root)["HH-POOL-LIMIT"]["what"]


def test_fixes_of_knobs_are_commands_that_fix(doctor, host, program, hugeheap):
    """The fix is typed as it stands, and the finding is gone."""
    for code in ("HH-THP-NEVER", "HH-THP-SIZE-NEVER", "HH-DEFRAG-ALWAYS", "HH-DEFRAG-NONE", "HH-KHUGEPAGED-FILLS",
                 "HH-KHUGEPAGED-NO-DEFRAG", "HH-POOL-IDLE"):  # fmt: skip
        HOSTS[code](host)
        fix = doctor(root=host.root)[code]["fix"].split()
        assert fix[0] == "hugeheap"
        result = hugeheap("--root", host.root, *fix[1:])
        assert result.returncode == 0, result.stderr
        if code == "HH-POOL-IDLE":
            assert host.read(f"{POOLS}/hugepages-2048kB/nr_hugepages") == "100"
        else:
            assert code not in doctor(root=host.root)


# --- the shell ---


def switched(program, switch):
    return [program, "thp", "set", "--for", switch, "--"]


@pytest.mark.parametrize(("switch", "code"), [("off", "HH-SHELL-THP-OFF"), ("advised", "HH-SHELL-THP-ADVISED")])
def test_the_switch_of_the_shell(program, environment, host, switch, code):
    words = [*switched(program, switch), program, "--root", host.root, "doctor", "--json"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if result.returncode == 3:
        pytest.skip(result.stderr)
    assert code in {finding["code"] for finding in json.loads(result.stdout)["findings"]}


def test_a_limited_address_space(doctor, host):
    limit = 8 * GIB
    found = doctor(root=host.root, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert set(found) == {"HH-ADDRESS-LIMIT"}
    assert "8.0 GiB" in found["HH-ADDRESS-LIMIT"]["what"]


# --- a process ---

HEAP = "import sys; heap = [bytearray(100) for _ in range(900_000)]; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def running(program, python, environment):
    started = []

    def running(*before, code=HEAP):
        process = subprocess.Popen([*before, python, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield running
    for process in started:
        process.communicate()


def test_a_process_that_is_not_huge(doctor, running):
    if "[always]" in Path(testbed.THP).read_text():
        pytest.skip("every process is huge here")
    pid = running()
    found = doctor("--pid", pid)
    assert f"hugeheap collapse {pid}" in found["HH-PROCESS-NOT-HUGE"]["fix"]
    assert "does not run on hugeheap" in found["HH-PROCESS-NOT-HUGE"]["what"]
    assert "HH-PROCESS-THP-OFF" not in found


def test_a_process_with_thp_off(doctor, running, program):
    found = doctor("--pid", running(*switched(program, "off")))
    assert "PR_SET_THP_DISABLE" in found["HH-PROCESS-THP-OFF"]["what"]
    assert "HH-PROCESS-NOT-HUGE" not in found, "the reason is known"


def test_limits_are_those_of_the_process(doctor, host):
    """Its control group's, and not those of the group that the doctor runs in."""
    host.write("proc/self/cgroup", "0::/here")
    for file, text in (("max", (1 << 29) + (16 << 20)), ("current", 1 << 29), ("stat", f"anon {400 << 20}\nshmem {112 << 20}")):
        host.write(f"sys/fs/cgroup/here/memory.{file}", text)
    small_pool(host, total=100, free=50)
    host.write("proc/77/status", "Name:\tworker\nVmRSS:\t 1 kB\nRssAnon:\t 1 kB\nTHP_enabled:\t1")
    host.write("proc/77/cgroup", "0::/pod")
    host.write("sys/fs/cgroup/pod/hugetlb.2MB.max", 1 << 20)
    found = doctor("--pid", 77, root=host.root)
    assert set(found) == {"HH-POOL-LIMIT", "HH-POOL-FORK"}
    assert set(doctor(root=host.root)) == {"HH-CGROUP-TIGHT", "HH-POOL-FORK"}
    tight(host)
    assert "HH-CGROUP-TIGHT" in doctor("--pid", 77, root=host.root), "a limit above holds for it, too"


def test_a_limit_on_pages_of_a_gibibyte_is_found(doctor, host):
    host.pool("1048576kB", total=4, free=2)
    host.write("sys/fs/cgroup/hugetlb.1GB.max", 2 * GIB)
    assert "may use 2.0 GiB of the pool's 4.0 GiB" in doctor(root=host.root)["HH-POOL-LIMIT"]["what"]


def merging(host, run, **knobs):
    for name, value in {"run": run, "pages_to_scan": 100, "sleep_millisecs": 20, "advisor_mode": "[none] scan-time", **knobs}.items():
        host.write(f"sys/kernel/mm/ksm/{name}", value)


ASKS = {"env": {"HUGEHEAP_MERGE": "1"}}


@pytest.mark.parametrize("run", [0, 2, None])
def test_merging_that_is_asked_for_and_that_the_host_does_not_do_is_found(doctor, host, run):
    if run is not None:
        merging(host, run)
    found = doctor(root=host.root, **ASKS)
    assert list(found) == ["HH-MERGE-OFF"]
    assert (f"ksm/run is {run}" if run is not None else "CONFIG_KSM") in str(found["HH-MERGE-OFF"])
    assert doctor(root=host.root) == doctor(root=host.root, env={"HUGEHEAP_MERGE": "0"}) == {}, "nobody asks"


def test_merging_that_takes_minutes_is_found(doctor, host):
    merging(host, 1)
    assert doctor(root=host.root, **ASKS) == {}
    # 1.2 GiB in all.
    merging(host, 1, pages_shared=1000, pages_sharing=9000, pages_unshared=300_000, pages_volatile=5000)
    found = doctor(root=host.root, **ASKS)
    assert list(found) == ["HH-MERGE-SLOW"] and "1.2 GiB that are to be merged here" in found["HH-MERGE-SLOW"]["what"], found
    assert doctor(root=host.root) == {}, "nobody asks"
    merging(host, 1, advisor_mode="none [scan-time]")
    assert doctor(root=host.root, **ASKS) == {}, "the kernel sees to it"
    merging(host, 1, pages_to_scan=5000)
    assert doctor(root=host.root, **ASKS) == {}, "after the fix"


def test_of_a_process_counts_what_it_was_started_with(doctor, host):
    merging(host, 0)
    host.write("proc/77/status", "Name:\tworker\nVmRSS:\t 1 kB\nRssAnon:\t 1 kB\nTHP_enabled:\t1")
    host.write("proc/77/environ", "HOME=/\0HUGEHEAP_MERGE=1\0LANG=C\0")
    assert "worker (77) asks for merging (HUGEHEAP_MERGE=1)" in doctor("--pid", 77, root=host.root)["HH-MERGE-OFF"]["what"]
    host.write("proc/77/environ", "HOME=/\0HUGEHEAP_MERGE=0\0NOT_HUGEHEAP_MERGE=1\0")
    assert doctor("--pid", 77, root=host.root, **ASKS) == {}, "the doctor's own environment is not the process's"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to see kernel threads")
def test_what_is_no_process_with_memory_is_refused_as_by_map(hugeheap):
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        for number, code in ((ended.pid, 5), (kernel_thread(), 3), (thread.native_id, 2), (0, 2), (1 << 40, 2), ("x", 2)):
            if number is not None:
                told = hugeheap("doctor", "--pid", number), hugeheap("map", number)
                assert [result.returncode for result in told] == [code] * 2, (number, told)
                if isinstance(number, int) and 0 < number < 1 << 22:
                    assert len({result.stderr for result in told}) == 1, told
    finally:
        stop.set()
        ended.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_process_that_may_not_be_looked_at_is_not_judged(hugeheap, running):
    """Nothing was read, and it was told that nothing worse was found, with status 0."""
    result = hugeheap("doctor", "--pid", running(), user=65534, group=65534, extra_groups=[])
    assert (result.returncode, result.stdout) == (4, "")
    assert "looking at its memory needs CAP_SYS_PTRACE" in result.stderr


def test_memory_advised_against_is_not_promised(hugeheap, doctor, running):
    code = "import mmap, sys\nm = mmap.mmap(-1, 100 << 20, flags=34)\nm.madvise(15)\nm[:] = b'x' * (100 << 20)\n"
    pid = running(code=code + "print('ready', flush=True); sys.stdin.read()")
    found = doctor("--pid", pid)["HH-PROCESS-NOT-HUGE"]
    assert "hugeheap collapse" not in found["fix"] and "MADV_NOHUGEPAGE" in found["fix"]
    plan = json.loads(hugeheap("collapse", "--dry-run", "--json", pid).stdout)
    assert plan["refused"] >= 48 and plan["plan"]["huge_pages"] < 10


def test_a_process_that_is_gone(hugeheap):
    ended = subprocess.Popen(["true"])
    ended.wait()
    result = hugeheap("doctor", "--pid", ended.pid)
    assert result.returncode == 5
    assert f"no process {ended.pid}" in result.stderr


# --- a command ---


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_python(tmp_path, implementation="cpython", version=(3, 12, 1), free_threaded=False, own=False):
    answer = json.dumps(["/x", implementation, list(version), free_threaded, own])
    return script(tmp_path / "python9", f"#!/bin/sh\necho '{answer}'\n")


def test_a_command_that_can_be_hooked(hugeheap, host, python):
    result = hugeheap("--root", host.root, "doctor", "--json", "--", python, "app.py")
    command = json.loads(result.stdout)["command"]
    assert command["levels"] == ["arenas", "objects"] and command["hindrance"] is None
    assert command["runtime"].startswith("CPython 3.")
    text = hugeheap("--root", host.root, "doctor", "--", python).stdout
    assert "levels arenas and objects) can get huge pages" in text


PYTHONS = {
    "HH-PYTHON-OTHER": ({"implementation": "pypy"}, {}),
    "HH-PYTHON-OLD": ({"version": (3, 9, 2)}, {}),
    "HH-PYTHON-FREE-THREADED": ({"version": (3, 13, 0), "free_threaded": True}, {}),
    "HH-PYTHON-ALLOCATOR": ({}, {"PYTHONMALLOC": "mimalloc"}),
    "HH-PYTHON-OWN-HUGE-PAGES": ({"version": (3, 15, 0), "own": True}, {}),
}


@pytest.mark.parametrize("code", PYTHONS)
def test_pythons(doctor, host, tmp_path, code):
    build, variables = PYTHONS[code]
    found = doctor("--", fake_python(tmp_path, **build), root=host.root, env=variables)
    assert set(found) == {code}


def test_the_pythons_of_this_host_are_told_by_version(doctor, host):
    for version, path in testbed.find_interpreters().items():
        expected = {"HH-PYTHON-FREE-THREADED"} if path.endswith("t") else set()
        assert set(doctor("--", path, root=host.root)) == expected, version


def test_a_python_that_does_not_answer_is_not_waited_for(doctor, host, tmp_path):
    found = doctor("--", script(tmp_path / "python3", "#!/bin/sh\nsleep 30\n"), root=host.root)
    assert set(found) == {"HH-TARGET-WRAPPER"}


RUBY = """
#include <sys/prctl.h>
#include <stdio.h>
int main(void) { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); printf("3.4.1 %d\\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) ? 0 : 1); return 0; }
"""


def test_a_ruby_that_switches_huge_pages_off(doctor, host, compiled, tmp_path):
    program = compiled("ruby", source=RUBY)
    found = doctor("--", program, root=host.root)
    assert set(found) == {"HH-RUBY-THP-OFF"} and "Ruby 3.4.1" in found["HH-RUBY-THP-OFF"]["what"]
    other = script(tmp_path / "ruby", "#!/bin/sh\necho 3.1.2 1\n")
    assert doctor("--", other, root=host.root) == {}


def secure(compiled, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to make a set-user-ID program of another user")
    program = compiled("secure")
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    return program


def musl(compiled, tmp_path):
    """A program that asks for musl's loader, which is there."""
    loader = tmp_path / "ld-musl-x86_64.so.1"
    loader.write_text("")
    return compiled("musl", f"-Wl,--dynamic-linker={loader}")


def foreign(compiled, tmp_path):
    """The header of a program for a machine that nobody has."""
    program = compiled("foreign", "-static")
    data = bytearray(program.read_bytes())
    data[18:20] = (22).to_bytes(2, "little")  # s390
    program.write_bytes(data)
    return program


TARGETS = {
    "HH-TARGET-STATIC": lambda compiled, tmp_path: compiled("static", "-static"),
    "HH-TARGET-LIBC": musl,
    "HH-TARGET-MACHINE": foreign,
    "HH-TARGET-SECURE": secure,
    "HH-TARGET-WRAPPER": lambda compiled, tmp_path: script(tmp_path / "start", "#!/bin/sh\nexec python3 app.py\n"),
    "HH-TARGET-NO-RUNTIME": lambda compiled, tmp_path: compiled("plain"),
}


def test_an_interpreter_that_cannot_say_which_it_is_is_not_said_to_be_none(hugeheap, tmp_path):
    """One that the kernel killed in a small cgroup was no interpreter that hugeheap knows."""
    program = script(tmp_path / "python3", "#!/bin/sh\nkill -9 $$\n")
    result = hugeheap("doctor", "--", program)
    assert "did not say what it is: signal: 9" in result.stdout.splitlines()[0]
    assert "no interpreter that hugeheap knows" not in result.stdout


@pytest.mark.parametrize("code", TARGETS)
def test_programs(doctor, host, compiled, tmp_path, code):
    assert set(doctor("--", TARGETS[code](compiled, tmp_path), root=host.root)) == {code}


def test_a_command_that_is_not_there(hugeheap, tmp_path):
    result = hugeheap("doctor", "--", "no-such-command")
    assert result.returncode == 127 and "not found" in result.stderr
    assert hugeheap("doctor", "--pid", "1", "--", "true").returncode == 2
    assert hugeheap("doctor", "--pid", "x").returncode == 2


# --- all of it ---


def codes(hugeheap):
    return [entry["code"] for entry in json.loads(hugeheap("explain", "--json").stdout)["codes"]]


def test_every_finding_is_provoked(hugeheap):
    provoked = {*HOSTS, *PYTHONS, *TARGETS}
    source = Path(__file__).read_text()
    provoked |= set(re.findall(r'found\["(HH-[A-Z-]+)"\]', source)) | set(re.findall(r'"(HH-SHELL-[A-Z-]+)"\)', source))
    rules = (DOCTOR / "rules.rs").read_text()
    tests = rules[rules.index("fn missing_calls_and_counters_are_found") :]
    names = dict(re.findall(r"^\s+(\w+) \"(HH-[A-Z-]+)\"", (DOCTOR / "codes.rs").read_text(), re.M))
    in_rust = {names[name] for name in re.findall(r"Code::(\w+)", tests)}
    assert in_rust >= OF_THE_KERNEL
    assert provoked | OF_THE_KERNEL == set(codes(hugeheap))


def test_text_says_the_same_worst_first(hugeheap, host):
    host.write(f"{THP}/enabled", chosen(MODES, "never"))
    host.write("proc/cpuinfo", "flags : hypervisor")
    result = hugeheap("--root", host.root, "doctor")
    assert result.returncode == 1 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("this host: 1 warning, ")
    assert lines[2] == "warning  HH-THP-NEVER"
    assert lines[4].strip() == "fix: hugeheap thp set mode=madvise --persist"
    assert "notice   HH-NESTED-PAGING" in lines
    assert "\x1b" not in result.stdout


def test_a_root_without_proc_is_no_diagnosis(hugeheap, tmp_path):
    result = hugeheap("--root", tmp_path, "doctor")
    assert (result.returncode, result.stdout) == (3, "")
    assert "--root names another directory" in result.stderr


def test_the_running_host_is_told_as_it_is(hugeheap):
    """A real knob, set and put back."""
    with testbed.knob(testbed.THP, "never"):
        result = hugeheap("doctor")
    assert result.returncode == 1 and "HH-THP-NEVER" in result.stdout


# --- explain ---


def test_explanations_have_their_parts(hugeheap):
    for text in ("HH-THP-NEVER", "thp-never"):
        result = hugeheap("explain", text)
        assert result.returncode == 0
        assert result.stdout.startswith("HH-THP-NEVER (warning)\n")
        assert "\nverify: " in result.stdout and "\nundo the fix: " in result.stdout
    assert len(hugeheap("explain").stdout.splitlines()) == len(codes(hugeheap))
    document = json.loads(hugeheap("explain", "thp-never", "--json").stdout)
    assert document["schema"] == "hugeheap.explain/1"
    assert set(document["codes"][0]) == {"code", "level", "mechanism", "verify", "undo"}


def test_an_unknown_code_is_refused(hugeheap):
    result = hugeheap("explain", "HH-NOTHING")
    assert result.returncode == 2 and "hugeheap explain lists all" in result.stderr


def test_what_is_huge_of_a_process_is_what_the_kernel_says(hugeheap, python):
    process = subprocess.Popen([python, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        told = json.loads(hugeheap("doctor", "--json", "--pid", process.pid).stdout)["process"]
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    finally:
        process.kill()
        process.communicate()
    kernel = {name: int(re.search(rf"^{name}: +(\d+)", rollup, re.M)[1]) << 10 for name in ("AnonHugePages", "Anonymous")}
    assert (told["huge"], told["anonymous"]) == (kernel["AnonHugePages"], pytest.approx(kernel["Anonymous"], abs=1 << 20))
    assert told["huge"] < told["anonymous"] and told["pid"] == process.pid and told["thp_off"] is False


def test_findings_are_counted_by_their_level(hugeheap, tmp_path):
    host = Host(tmp_path / "host")
    host.write(f"{THP}/enabled", "always madvise [never]")
    host.write(f"{THP}/hugepages-64kB/enabled", "[always] inherit madvise never")
    host.write("proc/cpuinfo", "processor : 0\nmodel name : Test CPU\nflags : fpu hypervisor")
    document = json.loads(hugeheap("--root", host.root, "doctor", "--json").stdout)
    levels = [finding["level"] for finding in document["findings"]]
    counts = [document[many] for many in ("errors", "warnings", "notices")]
    assert counts == [levels.count(level) for level in ("error", "warning", "notice")]
    assert len(set(counts)) == 3, "with the same number of two one could be told as the other"


def test_an_interpreter_that_says_nothing_is_not_waited_for_without_end(hugeheap, compiled):
    mute = compiled("python3", source="#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    result = hugeheap("doctor", "--", mute)
    assert "it did not say what it is: no answer within 5 s" in result.stdout, result
