"""The package's functions: what they answer and refuse, what importing does, and that the typed description is true."""

import ast
import re

import pytest
import testbed

PACKAGE = testbed.ROOT / "python" / "hugeheap"
REFERENCE = testbed.ROOT / "docs" / "reference" / "python.md"


@pytest.mark.every_version
def test_importing_does_nothing(ask, tmp_path):
    """No thread, no memory, no record, no hook: whoever only imports pays nothing."""
    before, after, told = ask(
        """
        import json, os
        def look():
            with open("/proc/self/maps") as maps:
                ours = [line for line in maps if "[anon" in line and "hugeheap" in line]
            return [len(os.listdir("/proc/self/task")), ours]
        before = look()
        import hugeheap
        rows = [[number] for number in range(300_000)]
        status, stats = hugeheap.status(), hugeheap.stats()
        given = hugeheap.give_back()
        told = [status.state, status.hooked, status.python, stats.arenas_peak, stats.allocations, stats.frees, given]
        print(json.dumps([before, look(), told]))
        """,
        HUGEHEAP_TELEMETRY=str(tmp_path),
    )
    assert before == after
    assert told == ["idle", False, "", 0, 0, 0, 0]
    assert testbed.records(tmp_path) == {}


@pytest.mark.every_version
def test_answers_have_the_documented_fields_types_and_units(ask, version):
    """Bytes are bytes, arenas are counts, and what the numbers say of each other holds."""
    status, stats, types, more = ask(
        """
        import dataclasses, hugeheap, json
        first = hugeheap.enable(policy="thp", decay=3600)
        assert first == hugeheap.status() and type(first) is hugeheap.Status
        rows = [(number, str(number)) for number in range(300_000)]
        table = bytearray(8 << 20)
        quick, stats = hugeheap.stats(measure=False), hugeheap.stats()
        types = sorted({type(value).__name__ for name, value in vars(stats).items() if name != "fallbacks"})
        frozen = 0
        for answer, name in (first, "state"), (stats, "live"):
            try:
                setattr(answer, name, 1)
            except dataclasses.FrozenInstanceError:
                frozen += 1
        more = [frozen, str(first), quick.resident, quick.coverage, stats.coverage, stats.hints]
        print(json.dumps([vars(first), vars(stats), types, more]))
        """
    )
    assert list(stats) == [*testbed.COUNTERS, *testbed.LATER, *testbed.LAST, "fallbacks"] and types == ["int"]
    assert isinstance(stats["fallbacks"], dict) and all(type(text) is str for text in status.values())
    assert (status["state"], status["policy"]) == ("hooked", "thp")
    assert status["python"].startswith(".".join(map(str, version)) + ".")
    frozen, text, quick, uncovered, coverage, hints = more
    assert frozen == 2 and text == f"hugeheap: {status['explanation']}; policy thp, in force: thp"
    assert quick == 0 and uncovered is None, "the kernel was asked without `measure`"
    assert coverage == stats["huge"] / stats["resident"] <= 1
    assert hints.keys() == stats["fallbacks"].keys() and all(hints.values())
    # 300 000 tuples of 56 bytes with strings of 54 and more, and the table.
    assert 40 << 20 < stats["live"] <= stats["live_peak"] < 100 << 20
    assert stats["large"] >= 8 << 20
    assert stats["arenas"] * (2 << 20) >= stats["live"]
    kinds = stats["arenas_thp"] + stats["arenas_hugetlb"] + stats["arenas_base"]
    assert kinds == stats["arenas"] <= stats["arenas_peak"]
    assert stats["resident"] >= 0.9 * stats["live"]


def test_settings_change_alone_and_memory_is_given_back_when_asked(ask):
    policies, full, kept, given, after, limited = ask(
        """
        import hugeheap, json
        policies = [hugeheap.enable(policy="dense", decay=3600).policy]
        assert hugeheap.configure(decay=2.5) is None
        policies.append(hugeheap.status().policy)
        hugeheap.configure(policy="base", decay=3600, limit=0)
        policies.append(hugeheap.status().policy)
        rows = [(number, str(number)) for number in range(600_000)]
        full = hugeheap.stats()
        del rows
        kept = hugeheap.stats()
        given = hugeheap.give_back()
        after = hugeheap.stats()
        hugeheap.configure(policy="thp", limit=1 << 20)
        rows = [(number, str(number)) for number in range(200_000)]
        limited = hugeheap.stats(measure=False).fallbacks
        print(json.dumps([policies, vars(full), vars(kept), given, vars(after), limited]))
        """
    )
    assert policies == ["dense", "dense", "base"]
    assert full["arenas_base"] == full["arenas"] > 20
    assert kept["retained"] > 40 << 20, "an hour of decay keeps what is freed"
    assert given > 40 << 20 and after["given_back"] - kept["given_back"] == given
    assert after["resident"] < full["resident"] - (40 << 20), "the kernel knows nothing of it"
    assert limited.get("memory_limit", 0) > 0, "a limit below one arena, and it was rounded up to huge pages"


def test_a_lower_decay_counts_for_what_was_freed_before(ask):
    """The thread that gives back slept for what it knew: an hour."""
    kept, left = ask(
        """
        import hugeheap, json, time
        hugeheap.enable(decay=3600)
        rows = [(number, str(number)) for number in range(600_000)]
        del rows
        # The thread's first look is over, and the next one an eighth of an hour away.
        time.sleep(0.3)
        kept = hugeheap.stats(measure=False).retained
        hugeheap.configure(decay=0.001)
        deadline = time.monotonic() + 20
        # Two arenas are kept without anybody who looks at them, and what is left of sparse ones.
        while (left := hugeheap.stats(measure=False).retained) > kept / 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        print(json.dumps([kept, left]))
        """
    )
    assert kept > 40 << 20, "an hour of decay keeps what is freed"
    assert left <= kept / 4, f"{left} of {kept} bytes were kept for 20 s, with a decay time of a millisecond"


MISTAKES = [
    ("enable(policy='enormous')", "unknown-policy", "'enormous'; choose one of auto, thp, dense, hugetlb, base"),
    ("enable(policy='THP')", "unknown-policy", "'THP'"),
    ("enable(policy='')", "unknown-policy", "choose one of"),
    ("enable(decay=0)", "bad-decay", "give seconds between 0.001 and 86400"),
    ("enable(decay=-1.0)", "bad-decay", "-1.0 s"),
    ("enable(decay=float('nan'))", "bad-decay", "nan"),
    ("enable(decay=float('inf'))", "bad-decay", "inf"),
    ("enable(limit=-1)", "bad-limit", "-1 bytes"),
    ("enable(limit=2**63)", "bad-limit", "0 for no limit"),
    ("configure(policy='thp')", "not-enabled", "call enable() first"),
    ("configure(policy='fast')", "unknown-policy", "'fast'"),
    # Not a value out of range but something else: a TypeError, as elsewhere in Python, which names what it should be.
    ("enable(policy=1)", None, "policy must be a name such as 'thp', not int"),
    ("enable(policy=b'thp')", None, "policy must be a name such as 'thp', not bytes"),
    ("enable(decay='1')", None, "decay must be a number of seconds, not str"),
    ("enable(decay=True)", None, "decay must be a number of seconds, not bool"),
    ("enable(limit='512M')", None, "limit must be a whole number of bytes, not str"),
    ("enable(limit=1.5)", None, "limit must be a whole number of bytes, not float"),
    ("enable(limit=True)", None, "limit must be a whole number of bytes, not bool"),
    ("enable('thp')", None, "positional"),
    ("enable(speed=9)", None, "speed"),
    ("stats(measure='yes')", None, "measure must be True or False, not str"),
]


def test_bad_arguments_are_refused_and_nothing_is_done(ask):
    answers, state = ask(
        f"""
        import hugeheap, json
        answers = []
        for call in {[call for call, _, _ in MISTAKES]!r}:
            try:
                answers.append([repr(eval("hugeheap." + call)), "", "", ""])
            except Exception as error:
                code, hint = getattr(error, "code", None), getattr(error, "hint", None)
                answers.append([type(error).__name__, code, hint, str(error)])
        assert issubclass(hugeheap.HugeheapError, ValueError)
        print(json.dumps([answers, hugeheap.status().state]))
        """
    )
    for (call, code, named), (kind, found, hint, text) in zip(MISTAKES, answers, strict=True):
        assert kind == ("HugeheapError" if code else "TypeError"), (call, kind, text)
        assert found == code and named in text and (hint is None or hint in text), (call, found, text)
        assert "\n" not in text
    assert state == "idle", "it did something all the same"


def test_the_environment_is_the_default_and_arguments_are_above_it(ask):
    program = "import hugeheap, json; print(json.dumps(hugeheap.enable({}).policy))"
    assert ask(program.format(""), HUGEHEAP_POLICY="dense") == "dense"
    assert ask(program.format("policy='base'"), HUGEHEAP_POLICY="dense") == "base"
    # The same of the decay, by what it does: memory that is freed goes back at once, or is kept for an hour.
    freed = ask(
        """
        import hugeheap, json, time
        def freed_within(seconds):
            rows = [[number] for number in range(300_000)]
            before = hugeheap.stats(measure=False).given_back
            del rows
            end = time.monotonic() + seconds
            while hugeheap.stats(measure=False).given_back < before + (10 << 20):
                if time.monotonic() > end:
                    return False
                time.sleep(0.01)
            return True
        hugeheap.enable(decay=0.001)
        freed = [freed_within(30)]
        hugeheap.enable()
        freed.append(freed_within(30))
        hugeheap.configure(decay=3600)
        freed.append(freed_within(0.3))
        print(json.dumps(freed))
        """,
        HUGEHEAP_DECAY="3600",
    )
    assert freed == [True, True, False]


def test_a_setting_of_the_environment_that_is_not_understood_is_not_passed_over(ask):
    """Each is told by name; corrected in the running process, the same call works."""
    settings = {"POLICY": "enormous", "DECAY": "soon", "LIMIT": "2XB", "LEVEL": "9"}
    answers, state = ask(
        f"""
        import hugeheap, json, os
        answers = []
        for name, value in {settings!r}.items():
            os.environ["HUGEHEAP_" + name] = value
            try:
                hugeheap.enable()
            except hugeheap.HugeheapError as error:
                answers.append([error.code, str(error), hugeheap.status().state])
            del os.environ["HUGEHEAP_" + name]
        state = hugeheap.enable(policy="base").state
        # In a process on hugeheap the environment is not read again.
        os.environ["HUGEHEAP_POLICY"] = "enormous"
        assert hugeheap.enable().policy == "base"
        print(json.dumps([answers, state]))
        """
    )
    assert len(answers) == len(settings), answers
    for name, (code, text, idle) in zip(settings, answers):
        assert code == "bad-setting" and f"HUGEHEAP_{name}" in text and idle == "idle"
    assert state == "hooked"


def test_a_setting_that_is_passed_over_is_told_and_the_process_is_enabled(start):
    """The log of garbage-collected heaps, and where the record goes: neither keeps objects from hugeheap."""
    result = start(
        "import hugeheap; print(hugeheap.enable().state, hugeheap.enable().state)",
        HUGEHEAP_LOG="all:-",
        HUGEHEAP_TELEMETRY="/nowhere/at/all",
    )
    assert (result.returncode, result.stdout) == (0, "hooked hooked\n")
    first, second = result.stderr.splitlines()
    assert first.startswith("hugeheap: HUGEHEAP_TELEMETRY must be an existing directory")
    assert second.startswith('hugeheap: HUGEHEAP_LOG: there is no section "all"')


def test_the_switch_off_is_above_the_program(ask):
    answer = ask(
        """
        import hugeheap, json
        first = hugeheap.enable(policy="thp")
        rows = [[number] for number in range(200_000)]
        try:
            hugeheap.configure(policy="thp")
        except hugeheap.HugeheapError as error:
            code = error.code
        print(json.dumps([first.state, first.hooked, hugeheap.stats().allocations, hugeheap.give_back(), code]))
        """,
        HUGEHEAP_DISABLE="1",
        HUGEHEAP_POLICY="nonsense",
    )
    assert answer == ["disabled", False, 0, 0, "not-enabled"]


@pytest.mark.parametrize(
    ("change", "state"),
    [("sys.abiflags += 't'", "free_threaded"), ("sys.implementation.name = 'pypy'", "not_python")],
)
def test_an_interpreter_the_extension_must_not_be_loaded_into(ask, change, state):
    """A free-threaded CPython finds the extension's file and would crash: its objects are laid out differently.

    The stand-in refuses the same mistakes, and answers the same fields.
    """
    answer = ask(
        f"""
        import json, sys
        real, kept = sys.implementation.name, sys.abiflags
        {change}
        import hugeheap
        import hugeheap._native as native
        status = hugeheap.enable()
        codes = []
        for call in (lambda: hugeheap.configure(policy="thp"), lambda: hugeheap.enable(policy="x"),
                     lambda: hugeheap.enable(limit=1.5)):
            try:
                call()
            except Exception as error:
                codes.append(getattr(error, "code", type(error).__name__))
        loaded = "hugeheap._hugeheap" in sys.modules
        numbers = {{value for name, value in vars(hugeheap.stats()).items() if name != "fallbacks"}}
        answer = [status.state, status.hooked, "nothing was hooked" in str(status), codes, loaded, sorted(numbers),
                  hugeheap.stats().coverage, hugeheap.give_back()]
        sys.implementation.name, sys.abiflags = real, kept
        import hugeheap._hugeheap as real
        stand_in = native.native
        assert type(stand_in) is native.StandIn and stand_in.POLICIES == real.POLICIES
        assert stand_in.status().keys() == real.status().keys()
        assert list(stand_in.stats(True)) == list(real.stats(True))
        print(json.dumps(answer))
        """
    )
    assert answer == [state, False, True, ["not-enabled", "unknown-policy", "TypeError"], False, [0], None, 0]


def described(path, name=None):
    """What a stub, or a class in a module, says there is: `{name: [(parameter, default or None)]}`, None for a value."""
    body = ast.parse(path.read_text()).body
    if name:
        body = next(one for one in body if isinstance(one, ast.ClassDef) and one.name == name).body
    found = {}
    for one in body:
        if isinstance(one, ast.AnnAssign):
            found[one.target.id] = None
        elif isinstance(one, ast.FunctionDef):
            names = [argument.arg for argument in one.args.args if argument.arg != "self"]
            defaults = [None] * (len(names) - len(one.args.defaults)) + [ast.unparse(value) for value in one.args.defaults]
            found[one.name] = [list(pair) for pair in zip(names, defaults)]
    return found


@pytest.mark.every_version
def test_the_stubs_describe_the_module_and_the_reference_the_package(ask):
    """Every name of the description exists, every public name is described, with the same parameters and defaults."""
    native, public, signatures, shown, typed = ask(
        """
        import hugeheap, inspect, json, pathlib
        import hugeheap._hugeheap as module
        def parameters(function):
            signature = inspect.signature(function)
            return [[one.name, None if one.default is one.empty else repr(one.default)] for one in signature.parameters.values()]
        names = [name for name in vars(module) if not name.startswith("_") or name == "__version__"]
        native = {name: parameters(value) if callable(value := getattr(module, name)) else None for name in names}
        public = sorted(name for name, value in vars(hugeheap).items() if not name.startswith("_") and not inspect.ismodule(value))
        signatures = {name: str(inspect.signature(getattr(hugeheap, name)).replace(return_annotation=inspect.Signature.empty))
                      for name in public if inspect.isfunction(getattr(hugeheap, name))}
        typed = (pathlib.Path(hugeheap.__file__).parent / "py.typed").exists() and hugeheap.__version__ == module.__version__
        native.pop("annotations", None); public.remove("annotations")
        print(json.dumps([native, public, signatures, sorted(hugeheap.__all__), typed]))
        """
    )
    stub = described(PACKAGE / "_hugeheap.pyi")
    assert native == stub
    assert sorted([*public, "__version__"]) == shown and typed
    # The protocol that the stand-in has to keep as well. It leaves defaults out: the package passes everything.
    for class_name in ("Native", "StandIn"):
        protocol = described(PACKAGE / "_native.py", class_name)
        if class_name == "Native":
            assert protocol.keys() == stub.keys()
        for name, parameters in protocol.items():
            if parameters is not None and not name.startswith("_"):
                assert [one for one, _ in parameters] == [one for one, _ in stub[name]], name
    documented = dict(re.findall(r"^\| `(\w+)(\(.*?\))` \|", REFERENCE.read_text(), re.MULTILINE))
    assert {name: re.sub(r": [^=,)]+(?= =| ?[,)])", "", text).replace(" = ", "=") for name, text in signatures.items()} == documented
