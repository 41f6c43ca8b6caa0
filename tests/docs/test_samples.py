"""Every sample in README.md and docs/ is executed and checked, or checked without running for a reason it names."""

import configparser
import contextlib
import ctypes
import doctest
import mmap
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from samples import (
    CONFIGURATION,
    EXECUTED,
    PROSE,
    ROOT,
    all_samples,
    commands_of,
    hugeheap_commands,
    matches,
)

SAMPLES = all_samples()
# Longest time of one sample; longer ones name that as their reason not to be run.
TIMEOUT = 120


def has_pool():
    pool = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    return pool.exists() and int(pool.read_text()) > 0


def has_names():
    """Whether the kernel names mappings (CONFIG_ANON_VMA_NAME)."""
    library = ctypes.CDLL(None)
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    set_vma, set_name = 0x53564D41, 0
    arguments = [ctypes.c_ulong(number) for number in (set_name, address, mmap.PAGESIZE)]
    return library.prctl(set_vma, *arguments, b"test") == 0


def has_huge_pages():
    """Whether advised memory becomes huge: the host's mode, and this process's switch."""
    mode = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    get_thp_disable = 42
    return mode.exists() and "[never]" not in mode.read_text() and ctypes.CDLL(None).prctl(get_thp_disable, 0, 0, 0, 0) == 0


def has_other_processes():
    """Whether other processes may be looked at and changed: CAP_SYS_NICE, CAP_SYS_PTRACE, and a kernel with MADV_COLLAPSE."""
    status = pathlib.Path("/proc/self/status").read_text()
    effective = int(re.search(r"^CapEff:\s*(\w+)", status, re.M)[1], 16)
    empty = [ctypes.c_void_p(0x10000), ctypes.c_size_t(0), 25]
    return effective >> 23 & effective >> 19 & 1 == 1 and has_huge_pages() and ctypes.CDLL(None).madvise(*empty) == 0


NEEDS = {
    "hugetlb": has_pool,
    "huge-pages": has_huge_pages,
    "mapping-names": has_names,
    "other-processes": has_other_processes,
    "ruby": lambda: shutil.which("ruby") is not None,
    "php": lambda: shutil.which("php") is not None,
}


def is_run(sample):
    need = sample.note("needs")
    return sample.note("not run") is None and (need is None or NEEDS[need]())


def chosen(*languages, run=None):
    return [
        pytest.param(sample, id=sample.name)
        for sample in SAMPLES
        if sample.language in languages and (run is None or is_run(sample) == run)
    ]


@pytest.mark.parametrize("sample", [pytest.param(sample, id=sample.name) for sample in SAMPLES])
def test_a_sample_says_what_it_is(sample):
    """A language nobody checks would be a sample that is skipped without a word."""
    assert sample.language in EXECUTED | CONFIGURATION | PROSE, "unknown or missing language of a fenced block"
    for name, value in sample.notes:
        assert name in ("not run", "needs", "numbers"), f"unknown note {name!r}"
        assert value, f"the note {name!r} gives no reason"
    need = sample.note("needs")
    assert need is None or need in NEEDS


@pytest.fixture
def workplace(tmp_path):
    """A directory that looks like the checkout, for samples that write files."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


# A host whose huge pages come slowly, or not at all, at this moment: what hugeheap then says is true, and not
# what the sample shows.
SHORT_OF_HUGE_PAGES = re.compile(r"\d+ × (latency|no_huge_page|collapse_no_page)")
TRIES = 3


@pytest.mark.parametrize("sample", chosen("console", run=True))
def test_console(sample, environment, workplace):
    for left in reversed(range(TRIES)):
        output = []
        try:
            return check_console(sample, environment, workplace, output)
        except AssertionError:
            short = sample.note("needs") == "huge-pages" and SHORT_OF_HUGE_PAGES.search("".join(output))
            if not short:
                raise
            if left == 0:
                pytest.skip(f"the host was short of huge pages each time: {short[0]}")


def check_console(sample, environment, workplace, said):
    commands = commands_of(sample.text)
    vary = sample.note("numbers") == "vary"
    assert commands, "no command: lines that begin with '$ '"
    mark = "=end of command="
    # One shell, so that variables and `$?` carry on from command to command.
    script = "".join(
        f"{command.text}\n__status=$?; printf '\\n{mark}%d\\n' $__status; (exit $__status)\n" for command in commands
    )
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=workplace,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    said.append(ran.stdout)
    parts = re.split(rf"\n{mark}(\d+)\n", ran.stdout)
    for index, command in enumerate(commands):
        assert 2 * index + 1 < len(parts), f"the shell ended in {command.text!r}:\n{ran.stdout}"
        output, status = parts[2 * index], int(parts[2 * index + 1])
        assert matches(command.expected, output.splitlines(), vary), f"$ {command.text}\nprinted\n{output}"
        asked = index + 1 < len(commands) and commands[index + 1].text == "echo $?"
        assert status == 0 or asked, f"$ {command.text}\nfailed with {status}:\n{output}"


@pytest.mark.parametrize("sample", chosen("console", run=False))
def test_console_that_is_not_run(sample, environment):
    for command in commands_of(sample.text):
        checked = subprocess.run(["bash", "-n", "-c", command.text], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"$ {command.text}\n{checked.stderr}"
        for script in re.findall(r"(?:docs|tests)/[\w/.-]+\.py", command.text):
            assert (ROOT / script).exists(), f"{script} does not exist"
        if command.text.startswith("make "):
            targets = command.text.split()[1:]
            subprocess.run(["make", "-n", *targets], cwd=ROOT, env=environment, capture_output=True, check=True)
    parse_hugeheap(sample, environment)


def parse_hugeheap(sample, environment):
    """Each command line of hugeheap is one it would understand: help is printed only after what stands before it."""
    for line in hugeheap_commands(sample.text):
        words = shlex.split(line)
        parsed = subprocess.run(
            ["hugeheap", *words, "--help"], env=environment, capture_output=True, text=True, check=False
        )
        assert parsed.returncode == 0, f"hugeheap {line}\n{parsed.stderr}"


@pytest.mark.parametrize("sample", chosen("python"))
def test_python(sample, request, environment, workplace):
    program = sample.text
    if not is_run(sample):
        compile(program, sample.name, "exec")
        return
    # Samples that only read need no package.
    imports = re.search(r"^(?:>>> )?(?:import|from) hugeheap\b", program, re.M)
    python = request.getfixturevalue("python") if imports else sys.executable
    if program.lstrip().startswith(">>>"):
        # A dialogue: as doctest checks it, `...` in the output is any text.
        program = (
            "import doctest, sys\n"
            f"text = {sample.text!r}\n"
            f"test = doctest.DocTestParser().get_doctest(text, {{}}, {sample.name!r}, None, 0)\n"
            f"flags = {doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE}\n"
            "sys.exit(doctest.DocTestRunner(optionflags=flags).run(test).failed > 0)\n"
        )
    ran = subprocess.run(
        [python, "-c", program], cwd=workplace, env=environment, capture_output=True, text=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.fixture(scope="session")
def rust_programs(tmp_path_factory):
    """All Rust samples as programs of one package, built once."""
    samples = [sample for sample in SAMPLES if sample.language == "rust"]
    if not samples:
        return {}
    package = tmp_path_factory.mktemp("rust")
    crates = {name: ROOT / "crates" / name for name in ("hugeheap", "hugeheap-os")}
    manifest = ['[package]', 'name = "samples"', 'edition = "2024"', "[dependencies]"]
    manifest += [f'{name} = {{ path = "{path}" }}' for name, path in crates.items() if name != "hugeheap"]
    # What collections need.
    manifest += [f'hugeheap = {{ path = "{crates["hugeheap"]}", features = ["allocator-api2"] }}', 'allocator-api2 = "0.2"']
    programs = {}
    for number, sample in enumerate(samples):
        name = f"sample{number}"
        text = sample.text if re.search(r"^\s*fn main\(", sample.text, re.M) else f"fn main() {{\n{sample.text}}}\n"
        (package / f"{name}.rs").write_text(text)
        manifest += ["[[bin]]", f'name = "{name}"', f'path = "{name}.rs"']
        programs[sample.name] = name
    manifest += ["[workspace]"]
    (package / "Cargo.toml").write_text("\n".join(manifest) + "\n")
    shutil.copy(ROOT / "Cargo.lock", package / "Cargo.lock")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "samples"
    # Nobody looks into them with a debugger.
    command = ["cargo", "build", "--quiet", "--config", "profile.dev.debug=0", "--target-dir", target]
    built = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return {name: target / "debug" / program for name, program in programs.items()}


@pytest.mark.parametrize("sample", chosen("rust"))
def test_rust(sample, rust_programs, environment):
    program = rust_programs[sample.name]
    if is_run(sample):
        ran = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_c(tmp_path, command, environment):
    # The archive beside the command, so that a sample needs no installation.
    interface = ["-I", ROOT / "include", command.parent / "libhugeheap.a", "-lgcc_s", "-lpthread", "-lm", "-ldl"]
    # All in one test: there may be none.
    for number, sample in enumerate(sample for sample in SAMPLES if sample.language == "c"):
        source = tmp_path / f"sample{number}.c"
        source.write_text(sample.text)
        program = source.with_suffix("")
        libraries = interface if "#include <hugeheap" in sample.text else []
        strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *strict, "-o", program, source, *libraries], check=True)
        if is_run(sample):
            subprocess.run([program], env=environment, timeout=TIMEOUT, check=True)


@pytest.mark.parametrize("sample", chosen(*CONFIGURATION))
def test_configuration(sample, environment):
    parse_hugeheap(sample, environment)
    if sample.language == "ini":
        # systemd's units are close enough to what this understands; keys may repeat.
        configparser.RawConfigParser(strict=False, interpolation=None).read_string(sample.text)
    elif sample.language == "toml":
        import tomllib

        tomllib.loads(sample.text)
    elif sample.language == "sh":
        subprocess.run(["bash", "-n", "-c", sample.text], check=True)
    elif sample.language == "yaml":
        assert "\t" not in sample.text
        # Its form as well where PyYAML is installed; its commands were checked above.
        with contextlib.suppress(ImportError):
            import yaml

            yaml.safe_load(sample.text)
