"""What the library says of the process: JSON beside the struct, and no wrong use of the caller's memory."""

import json
import re
import subprocess

from .conftest import HERE, ROOT, TIMEOUT, needs, run

SOURCE = HERE / "process.c"


def test_the_json_says_what_the_struct_does(compiled, clean):
    said = json.loads(run(compiled(SOURCE), "json", clean, HUGEHEAP_POLICY="thp"))
    assert said["schema"] == "hugeheap.stats/1"
    assert said["policy"] == "thp"
    header = (ROOT / "include/hugeheap.h").read_text()
    body = header[header.index("typedef struct hh_stats_t {") : header.index("} hh_stats_t;")]
    members = re.findall(r"^    uint64_t (\w+);", body, re.M)
    assert [name for name in said if name in members] == members
    assert said["gc_pause_lengths"] == [0] * 24
    reasons = {entry["reason"]: entry for entry in said["fallbacks"]}
    assert reasons["address_space"]["count"] == 1 and reasons["address_space"]["hint"]


def test_errno_stays_as_it_was_where_no_thread_can_be_started(compiled, clean):
    run(compiled(SOURCE), "refused", {**clean, "HUGEHEAP_DECAY": "0.01"})


def test_no_memory_error_under_valgrind(compiled, clean):
    """What the library does with memory that is not its own: buffers, structs, errno."""
    needs("valgrind")
    for section in ("json", "process"):
        command = ["valgrind", "--quiet", "--error-exitcode=9", compiled(SOURCE), section]
        ran = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert ran.returncode == 0, ran.stderr
