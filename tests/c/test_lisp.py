"""The Scheme of examples/lisp: the language, its errors, known programs; the same output under every check of the collector."""

import json
import random
import subprocess

import pytest

from .conftest import ROOT, STRICT, needs

HERE = ROOT / "examples/lisp"
PROGRAMS = HERE / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.scm") if path.stem not in ("small", "full"))

MODES = {
    "plain": [],
    "small nursery": ["--nursery", "65536"],
    "checks": ["--check", "verify,barriers,poison"],
    "stress": ["--stress", "1"],
    "poison and stress": ["--check", "poison", "--stress", "13"],
    "everything": ["--check", "verify,barriers,poison,moving,rotate", "--stress", "100"],
}


@pytest.fixture(scope="module")
def build(flags, tmp_path_factory):
    """Builds the interpreter with further options."""
    needs("gcc", "pkg-config")
    directory = tmp_path_factory.mktemp("lisp")

    def make(name, *options):
        program = directory / name
        command = ["gcc", "-std=c11", "-D_GNU_SOURCE", *STRICT, *options, *sorted(HERE.glob("*.c")), "-o", program, "-lm"]
        made = subprocess.run([*command, *flags("hugeheap")], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        return program

    return make


@pytest.fixture(scope="module")
def lisp(build):
    return build("lisp")


@pytest.fixture(scope="module")
def sanitized(build):
    return build("sanitized", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run(program, *words, text="", clean=None):
    command = [program, *map(str, words)]
    return subprocess.run(command, input=text, env=clean, capture_output=True, text=True, errors="replace", timeout=120, check=False)


def prints(program, text, clean, *words):
    ran = run(program, *words, "-", text=text, clean=clean)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


def test_files_are_small():
    files = [*HERE.glob("*.[ch]")]
    assert len(files) >= 12 and all(len(path.read_text().splitlines()) <= 560 for path in files)


# Last lines of the programs at full size; where another implementation's result is known, it is that.
KNOWN = {
    "tak": "7\n7\n",
    "nqueens": "(1 1 0 0 2 10 4 40 92)\n",
    "trees": "(long lived 14 32767)\n",
    "deriv": "(- (/ 1 (+ x 1)) (/ x (* (+ x 1) (+ x 1) (+ 1 0))))\n",
    "destruct": f"{sum(range(3000))}\n297999000\n",
    "strings": '(42000 41999)\n"abcdefghijklmnopqrstuvwxyz"\n',
    "browse": "4325.0\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_programs_print_what_is_known(name, lisp, clean):
    ran = run(lisp, PROGRAMS / "full.scm", PROGRAMS / f"{name}.scm", clean=clean)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.endswith(KNOWN[name]), ran


@pytest.mark.parametrize("name", NAMES)
def test_programs_print_the_same_in_every_mode(name, lisp, clean):
    printed = set()
    for mode, words in MODES.items():
        ran = run(lisp, *words, PROGRAMS / "small.scm", PROGRAMS / f"{name}.scm", clean=clean)
        assert (ran.returncode, ran.stderr) == (0, ""), (mode, ran.stderr)
        printed.add(ran.stdout)
    assert len(printed) == 1


@pytest.mark.parametrize("name", NAMES)
def test_programs_under_sanitizers(name, sanitized, lisp, clean):
    words = [PROGRAMS / "small.scm", PROGRAMS / f"{name}.scm"]
    ran = run(sanitized, "--stress", 20, *words, clean={**clean, "ASAN_OPTIONS": "detect_leaks=0"})
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout == run(lisp, *words, clean=clean).stdout


LANGUAGE = [
    ("(define (f . x) x) (list (f) (f 1 2) ((lambda (a . b) (list a b)) 1 2 3) (apply f 1 '(3 4)))", "(() (1 2) (1 (2 3)) (1 3 4))"),
    ("(define (counter) (let ((n 0)) (lambda () (set! n (+ n 1)) n))) (define a (counter)) (a) (a) (list (a) ((counter)))", "(3 1)"),
    # Each round of a loop has variables of its own, also those that are assigned.
    ("(map (lambda (p) (p)) (do ((i 0 (+ i 1)) (l '() (cons (lambda () i) l))) ((= i 3) l)))", "(2 1 0)"),
    ("(map (lambda (p) (p) (p)) (do ((i 0 (+ i 1)) (l '() (cons (lambda () (set! i (+ i 10)) i) l))) ((= i 3) l)))", "(22 21 20)"),
    # Tail calls, more than any stack holds; and recursion.
    ("(define (even n) (if (= n 0) 'even (odd (- n 1)))) (define (odd n) (if (= n 0) 'odd (even (- n 1)))) (even 1000001)", "odd"),
    ("(let loop ((i 0)) (cond ((< i 1000000) (loop (+ i 1))) (else (and #t (or #f (begin i))))))", "1000000"),
    ("(define (deep n) (if (= n 0) 0 (+ 1 (deep (- n 1))))) (deep 100000)", "100000"),
    ("(define (f x) (define y (* x 2)) (define (g z) (if (= z 0) y (g (- z 1)))) (g 5)) (f 21)", "42"),
    ("`(1 ,(+ 1 1) ,@(list 3 4) (5 ,@'() ,6) . 7)", "(1 2 3 4 (5 6) . 7)"),
    ("(list 1.5 -0.25 1e100 (/ 1 3) (/ 6 3) (sqrt 2) (+ 1 2.5) 3.0 -7)", "(1.5 -0.25 1e+100 0.3333333333333333 2 1.4142135623730951 3.5 3.0 -7)"),
    ("(list (quotient -7 2) (remainder -7 2) (modulo -7 2) (< 1 2 2) (<= 1 2 2) (max 1 3 2))", "(-3 -1 1 #f #t 3)"),
    ("(list (case 3 ((1 2) 'low) ((3 4) 'mid) (else 'high)) (cond ((assv 2 '((1 . a) (2 . b))) => cdr) (else 'no)))", "(mid b)"),
    ("(let* ((x 1) (y (+ x 1))) (letrec ((z (lambda (n) (if (= n 0) y (z (- n 1)))))) (z 9)))", "2"),
    ('(list #\\a #\\space "a\\"b\\n" (string->number "x") (string->symbol "y z") (symbol->string \'car))', '(#\\a #\\space "a\\"b\\n" #f y z "car")'),
    ("(define t (make-hash-table)) (hash-table-set! t '(1 \"x\") 2) (hash-table-update! t 'k (lambda (n) (+ n 1)) 5) (list (hash-table-ref t (list 1 \"x\")) (hash-table-ref t 'k) (hash-table-ref t 'no 'none) (hash-table-count t))",
     "(2 6 none 2)"),
    # Functions as keys are found after they moved; places of removed keys are taken again.
    ("(define t (make-hash-table)) (define keys (map (lambda (i) (lambda () i)) (iota 100))) (for-each (lambda (k) (hash-table-set! t k (k))) keys) "
     "(collect-garbage) (define found (map (lambda (k) (hash-table-ref t k)) keys)) "
     "(do ((i 0 (+ i 1))) ((= i 5000)) (hash-table-set! t i i) (hash-table-delete! t i)) (list (equal? found (iota 100)) (hash-table-count t))", "(#t 100)"),
    ("(sort '(3 1 2 5 4) <)", "(1 2 3 4 5)"), ("(let ((v (make-vector 2000 0))) (vector-set! v 1999 'x) (collect-garbage) (vector-ref v 1999))", "x"),
    ("; a comment\n(list car (vector 1 2) (lambda () 1))", "(#<primitive car> #(1 2) #<procedure ()>)"),
    ("(define (car x) 'mine) (car '(1))", "mine"),
]  # fmt: skip


def test_the_language(lisp, clean):
    for text, wanted in LANGUAGE:
        printed = run(lisp, text=text.replace("\n", " ") if not text.startswith(";") else text, clean=clean).stdout
        assert printed.splitlines()[-1] == wanted, (text, printed)


def test_the_language_when_every_allocation_collects(lisp, clean):
    for text, wanted in LANGUAGE:
        if "1000" not in text and "5000" not in text:
            printed = run(lisp, "--check", "verify,barriers,poison", "--stress", 25, text=text, clean=clean).stdout
            assert printed.splitlines()[-1] == wanted, (text, printed)


ERRORS = {
    "(deep": "line 2: the text ends inside a form",
    ")": "line 1: a parenthesis is closed that was not opened",
    "#z": "line 1: nothing is written #z",
    "(car 5)": "car: 5 is no pair",
    "(foo 1)": "foo is not defined",
    "(set! foo 1)": "foo is not defined",
    "((lambda (x) x))": "a function: 0 arguments, wanted 1",
    "(define (f x . y) x) (f)": "f: 0 arguments, wanted at least 1",
    "(define c car) (c)": "car: 0 arguments, wanted 1",
    "(vector-ref (vector 1 2) 2)": "vector-ref: 2 is no index of the vector",
    "(define (d n) (+ 1 (d n))) (d 1)": "the stack is full: recursion is too deep",
    "(error \"bad thing\" 1 '(2 \"x\"))": 'bad thing 1 (2 "x")',
    "(+ 4611686018427387903 1)": "+: the result has more than 63 bits",
    "(* 99999999999 99999999999)": "*: the result has more than 63 bits",
    "(quotient 1 0)": "quotient: division by 0",
    "(+ 'a 1)": "+: a is no number",
    "(let ((x)) x)": "a part of a form is missing: (x)",
    "(if)": "a part of a form is missing: (if)",
    "(if . 1)": "a part of a form is missing: (if . 1)",
    "(lambda (1) 2)": "variable: 1 is no name",
    "(let ((x 1)) x (define y 1) y)": "define belongs at the beginning of a body: (define y 1)",
    "(5 5)": "call: 5 is no procedure",
    "()": "() is no expression; write '()",
    '(string-ref "abc" 3)': "string-ref: 3 is no index of the string",
    "(hash-table-ref 1 2)": "hash-table-ref: 1 is no hash table",
    "(make-vector -1)": "make-vector: -1 is no length",
    "(" * 20000: "line 1: forms are nested more than 10000 times",
}


@pytest.mark.parametrize("text", ERRORS, ids=lambda text: text[:30])
def test_errors_are_one_line(text, lisp, clean):
    ran = run(lisp, "-", text=text + "\n", clean=clean)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"lisp: -: {ERRORS[text]}\n")


def test_after_an_error_and_exhausted_memory_it_goes_on(lisp, clean):
    text = "(+ 1\n 2)\n(car 1)\n(define (grow l) (grow (cons 1 l)))\n(grow '())\n(+ 1 3)\n(make-vector 10000000)\n(vector-length (make-vector 1000))\n"
    ran = run(lisp, "--nursery", 262_144, "--maximum", 4_000_000, text=text, clean=clean)
    assert ran.stdout == "3\nerror: car: 1 is no pair\nerror: memory is exhausted\n4\nerror: memory is exhausted\n1000\n"
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("limit", ["-v", "-d"])
def test_it_ends_soon_where_the_shell_limits_it(limit, lisp, clean, tmp_path):
    """Near the limit there was a whole collection for each 16 KiB, in which each object asked for memory that was refused: it took minutes."""
    program = tmp_path / "grow.scm"
    program.write_text("(define (grow l) (grow (cons 1 l)))\n(grow '())\n")
    ran = run("bash", "-c", f"ulimit {limit} 200000; exec {lisp} {program}", clean=clean)
    assert (ran.returncode, ran.stdout) == (1, "") and "memory is exhausted" in ran.stderr, ran


def test_it_prints_statistics(lisp, clean):
    ran = run(lisp, "--gc-stats", "--nursery", 65536, PROGRAMS / "full.scm", PROGRAMS / "trees.scm", clean=clean)
    said = json.loads(ran.stderr)
    assert said["schema"] == "hugeheap.gc-stats/1" and said["minor"] > 10 and said["survivors"] > 32767 and said["nursery"] == 65536


@pytest.mark.parametrize("words", [["--wrong"], ["--stress"], ["--stress", "x"], ["--check", "all"], ["--check", ""], ["--nursery", "-1"]])
def test_bad_usage_is_told(words, lisp, clean):
    ran = run(lisp, *words, clean=clean)
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith("usage: lisp ")


def test_bad_files_and_settings_are_told(lisp, clean, tmp_path):
    ran = run(lisp, tmp_path / "none", clean=clean)
    assert ran.returncode == 2 and ran.stderr.startswith("lisp: cannot read ")
    ran = run(lisp, "--nursery", 1000, PROGRAMS / "small.scm", clean=clean)
    assert ran.returncode == 1 and ran.stderr == "lisp: a nursery must have at least 65536 bytes; 0 leaves its size to hugeheap\n"


def test_broken_text_is_never_a_crash(sanitized, clean):
    """Programs with pieces removed, doubled and moved."""
    known = random.Random(4)
    texts = [(PROGRAMS / f"{name}.scm").read_text() for name in ("browse", "deriv", "strings")]
    environment = {**clean, "ASAN_OPTIONS": "detect_leaks=0"}
    for _ in range(40):
        text = known.choice(texts)
        for _ in range(known.randint(1, 6)):
            a, b = sorted(known.randrange(len(text)) for _ in range(2))
            b = min(b, a + 30)
            text = text[:a] + known.choice(["", text[a:b] * 2, ")", "(", "'", ". ", "#(", '"', "(if ", "(let ((x", "do "]) + text[b:]
        # Broken loops may be endless: only forms that define, and the first that does not.
        ran = run(sanitized, "--nursery", 262_144, "--maximum", 8_000_000, "-", text="(define small 1)\n(define (loop-guard) 1)\n" + text.replace("(do ", "(quote ").replace("let loop", "let"), clean=environment)
        assert ran.returncode in (0, 1) and "Sanitizer" not in ran.stderr and "runtime error" not in ran.stderr, (text, ran.stderr)
