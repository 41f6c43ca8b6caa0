"""Processor time and memory of real programs on the C library's allocator, at level `malloc`, and on the allocators
found on this machine that are made to be preloaded.

    python3 programs.py [--runs N] [--scale F] [--programs NAME,…] [--against NAME,…] [--hugeheap COMMAND]

Programs that are not installed are left out, and said to be. Each is run twice in a row on the same allocator, and the
second run counts: the memory that it gets was the first one's a moment ago. Where a virtual machine's host takes free
huge pages back, who comes first after another program pays for getting them again, and 4 KiB pages are not taken. The
allocators come by turns. Time is what the process and its children had of a processor.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

PRELOADED = {"mimalloc": "libmimalloc.so.2", "jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--runs", type=int, default=5, help="runs that count, of each program on each allocator")
parser.add_argument("--scale", type=float, default=1.0, help="how much each program does, relative to a second or less")
parser.add_argument("--programs", help="default: all that are installed")
parser.add_argument("--hugeheap", default="hugeheap", metavar="COMMAND", help="default: the one in the search path")
parser.add_argument("--against", help=f"of {', '.join(PRELOADED)}; default: all that are found")
options = parser.parse_args()


def times(number):
    return max(1, int(number * options.scale))


PERL = f"""
my %h; for my $i (1..{times(600_000)}) {{ $h{{"key" . $i % 150_000}} .= "value $i " }}
my @sorted = map {{ [$_, $h{{$_}}] }} sort keys %h;
print scalar(grep {{ length($_->[1]) > 20 }} @sorted), "\\n";
"""
LUA = f"""
local function bottom(depth) if depth == 0 then return {{}} end return {{bottom(depth - 1), bottom(depth - 1)}} end
local function check(tree) return tree[1] and 1 + check(tree[1]) + check(tree[2]) or 1 end
local sum = 0
for _ = 1, {times(60)} do sum = sum + check(bottom(13)) end
print(sum)
"""
GAWK = f"""
BEGIN {{
    for (i = 0; i < {times(700_000)}; i++) {{ k = "k" (i * 7919 % 50021); a[k] = a[k] " " i }}
    for (k in a) n += split(a[k], parts, " ")
    print n
}}
"""
TCL = f"""
for {{set i 0}} {{$i < {times(300_000)}}} {{incr i}} {{ dict lappend d k[expr {{$i % 20000}}] "v$i" }}
set n 0
dict for {{k v}} $d {{ incr n [llength $v]; incr n [string length [join $v ,]] }}
puts $n
"""
SQL = f"""
create table t(id integer primary key, a text, b text);
with recursive c(x) as (select 1 union all select x + 1 from c where x < {times(200_000)})
insert into t select x, 'name' || x, hex(x * 7919) from c;
create index i on t(b);
select count(*), sum(length(a)) from t where b like '3%';
update t set a = a || b where id % 3 = 0;
select sum(length(a)) from t;
"""
PHP = f"""
for ($i = 0; $i < {times(600_000)}; $i++) {{ $m["k" . $i * 7919 % 100003][] = "v$i"; }}
ksort($m);
$n = 0; foreach ($m as $v) {{ $n += strlen(implode(",", $v)); }}
echo $n, "\\n";
"""
PYTHON = f"""
texts = [str(number) * 3 for number in range({times(1_000_000)})]
lists = {{text: [text] for text in texts}}
print(len(lists))
"""


def programs(directory):
    """Name → (command, additions to the environment, standard input)."""
    data = pathlib.Path(directory, "rows.json")
    with data.open("w") as file:
        # One by one: the kernel counts what this process has at its peak for those that it starts.
        for number in range(times(120_000)):
            tags = [f"t{number % k}" for k in range(1, 6)]
            json.dump({"id": number, "tags": tags, "share": number % 97 / 97}, file)
    scripts = {"tcl": ("list.tcl", TCL), "lua": ("trees.lua", LUA)}
    for name, (file, text) in scripts.items():
        scripts[name] = pathlib.Path(directory, file)
        scripts[name].write_text(text)
    jq = '[.[] | select(.share > 0.5) | {id, tags: (.tags | join(","))}] | length'
    return {
        "perl": (["perl", "-e", PERL], {}, None),
        "lua": (["lua5.4", str(scripts["lua"])], {}, None),
        "jq": (["jq", "--slurp", jq, str(data)], {}, None),
        "gawk": (["gawk", GAWK], {}, None),
        "tcl": (["tclsh", str(scripts["tcl"])], {}, None),
        "sqlite": (["sqlite3", "-batch", ":memory:"], {}, SQL),
        "php": (["php", "-d", "memory_limit=-1", "-r", PHP], {"USE_ZEND_ALLOC": "0"}, None),
        "python": ([sys.executable, "-c", PYTHON], {"PYTHONMALLOC": "malloc"}, None),
    }


def run(command, environment, text):
    """Seconds, peak RSS in MiB, and what was printed; instead of that how it ended, unless well."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as printed:
        source.write((text or "").encode())
        source.seek(0)
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=source, stdout=printed, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        if process.returncode != 0:
            return None, None, f"ended with {process.returncode}"
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, printed.read()


def on(allocator, command, environment):
    """The command on an allocator, and its environment."""
    if allocator == "stock":
        return command, environment
    if allocator == "level malloc":
        return [options.hugeheap, "run", "--level", "malloc", "--", *command], environment
    return command, {**environment, "LD_PRELOAD": PRELOADED[allocator]}


def is_found(library):
    """Whether the loader finds it; it says so where it does not. To open it would be something else: some cannot be."""
    tried = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": library}, stderr=subprocess.PIPE)
    return not tried.stderr


def chosen(option, names, text):
    """Those of the names that were asked for, all by default."""
    if text is None:
        return list(names)
    asked = [name for name in text.split(",") if name]
    for name in asked:
        if name not in names:
            parser.error(f"{option}: there is no {name!r}; there are {', '.join(names)}")
    return asked


def compare(name, allocators, command, environment, text):
    """Runs a program on all allocators by turns, prints a line, and returns the medians relative to stock's."""
    if shutil.which(command[0]) is None:
        print(f"{name:8} {command[0]} is not installed")
        return None
    found = {allocator: [] for allocator in allocators}
    expected = None
    for _ in range(options.runs):
        for allocator in allocators:
            prepared = on(allocator, command, environment)
            run(*prepared, text)
            found[allocator].append(run(*prepared, text))
            *_, printed = found[allocator][-1]
            expected = printed if expected is None else expected
            if allocator in ("stock", "level malloc") and (printed != expected or isinstance(printed, str)):
                sys.exit(f"{name} on {allocator}: {printed!r}, and on stock {expected!r}")
    cells, medians = [], {}
    base = statistics.median(seconds for seconds, *_ in found["stock"])
    for allocator in allocators:
        failed = [printed for seconds, _, printed in found[allocator] if seconds is None]
        if failed:
            cells.append(f"{failed[0]:>22}")
            continue
        ratios = sorted(seconds / base for seconds, *_ in found[allocator])
        spread = f"({ratios[0]:.2f}–{ratios[-1]:.2f})"
        peak = statistics.median(peak for _, peak, _ in found[allocator])
        medians[allocator] = statistics.median(ratios)
        cells.append(f"{medians[allocator]:.2f} {spread} {peak:4.0f}".rjust(22))
    print(f"{name:8} {base:7.3f} s {''.join(cells)}", flush=True)
    return medians


if options.runs < 1 or options.scale <= 0:
    parser.error("--runs and --scale have to be positive")
if shutil.which(options.hugeheap) is None:
    sys.exit(f"{options.hugeheap} is not found: name the command with --hugeheap, target/release/hugeheap where it was built")
peers = chosen("--against", PRELOADED, options.against)
missing = [name for name in peers if not is_found(PRELOADED[name])]
for name in missing:
    print(f"{name} is left out: the loader does not find {PRELOADED[name]}")
allocators = ["stock", "level malloc", *(name for name in peers if name not in missing)]
with tempfile.TemporaryDirectory() as directory:
    table = programs(directory)
    named = chosen("--programs", table, options.programs)
    print(f"Processor time, median of {options.runs} relative to stock's median, least and most; peak RSS in MiB")
    print(f"{'':8} {'stock':>9} {''.join(name.rjust(22) for name in allocators)}")
    ratios = [compare(name, allocators, *table[name]) for name in named]
on_all = [found for found in ratios if found and len(found) == len(allocators)]
if on_all:
    means = [statistics.geometric_mean(found[allocator] for found in on_all) for allocator in allocators]
    print(f"geometric mean of {len(on_all):2}{''.join(f'{mean:.2f}'.ljust(18).rjust(22) for mean in means)}")
