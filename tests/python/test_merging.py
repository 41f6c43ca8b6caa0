"""Merging asked for by a program itself: `enable(merge=True)` and `configure(merge=…)`."""

import json

import testbed

KSM = "/sys/kernel/mm/ksm"

# A heap of which a tenth stays, at random, is idle until the host's answer is known.
SHRUNK = """
import json, os, random, subprocess, sys, time
import hugeheap
random.seed(1)
hugeheap.enable(level="objects", decay=0.2, merge=True)
make = lambda number: number.to_bytes(4, "little") * (4 + number % 120)
objects = [make(number) for number in range(256_000)]
stay = sorted(random.sample(range(256_000), 25_600))
objects = [objects[number] for number in stay]
end = time.monotonic() + 60
done = {done}
while not done(hugeheap.stats()) and time.monotonic() < end:
    time.sleep(0.1)
assert all(one == make(number) for one, number in zip(objects, stay))
stats = hugeheap.stats()
doctor = subprocess.run([sys.argv[1], "doctor", "--json", "--pid", str(os.getpid())], capture_output=True, text=True)
print(json.dumps([dict(stats.fallbacks), stats.alike, stats.hints.get("no_merging"), doctor.stdout]))
"""


def test_what_cannot_be_merged_is_refused_and_changes_nothing(ask):
    told = ask(
        """
        import json, hugeheap, os
        def refused(function, **settings):
            try:
                function(**settings)
            except (TypeError, hugeheap.HugeheapError) as error:
                return getattr(error, "code", str(error))
        told = [refused(hugeheap.enable, merge=1), refused(hugeheap.enable, merge=True), refused(hugeheap.enable, level="arenas", merge=True)]
        told.append(hugeheap.status().state)
        told.append(refused(hugeheap.enable, merge=False))
        told.append(refused(hugeheap.configure, merge=True))
        told.append(refused(hugeheap.enable, level="objects", merge=True))
        told.append(refused(hugeheap.configure, merge=False) or refused(hugeheap.configure, merge=True))
        print(json.dumps(told))
        """
    )
    needs = "merge-needs-objects"
    assert told == ["merge must be True or False, not int", needs, needs, "idle", None, needs, None, None]


def test_the_level_of_the_environment_counts(ask):
    assert ask("import hugeheap; print(hugeheap.enable(merge=True).level == 'objects' and 1)", HUGEHEAP_LEVEL="objects") == 1


def test_where_the_host_does_not_merge_a_program_that_asks_finds_that_and_the_doctor_too(ask):
    with testbed.knob(f"{KSM}/run", 0):
        fallbacks, alike, hint, said = ask(SHRUNK.replace("{done}", "lambda stats: stats.fallbacks.get('no_merging')"), str(testbed.find_command()))
    assert fallbacks["no_merging"] == 1 and alike == 0 and "ksm/run" in hint
    found = {finding["code"]: finding["what"] for finding in json.loads(said)["findings"]}
    assert "it counts no_merging" in found["HH-MERGE-OFF"]


def test_where_the_host_merges_a_program_that_asks_has_pages_made_alike(ask):
    with testbed.knob(f"{KSM}/pages_to_scan", 20_000), testbed.knob(f"{KSM}/run", 1):
        fallbacks, alike, *_ = ask(SHRUNK.replace("{done}", "lambda stats: stats.alike"), str(testbed.find_command()))
    assert alike > 0 and "no_merging" not in fallbacks
