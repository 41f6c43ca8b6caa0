"""`hugeheap bench all` end to end: files, page, what cannot be measured."""

import json

SMALL = ["--quick", "--runs", "1", "--touch", "none"]


def test_each_leaves_its_files_and_all_of_them_a_page(hugeheap, tmp_path):
    directory = tmp_path / "results"
    result = hugeheap("--json", "bench", "all", *SMALL, "--only", "stride", "-o", directory, timeout=300)
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    assert value["schema"] == "hugeheap.bench.all/1"
    (one,) = value["experiments"]
    assert (one["name"], one["status"]) == ("stride", 0) and one["goals"] == 3
    assert json.loads((directory / "stride.json").read_text())["schema"] == "hugeheap.bench.stride/1"
    assert "One access per OS page" in (directory / "stride.txt").read_text()
    page = (directory / "report.html").read_text()
    assert "One access per OS page" in page and "http://" not in page.replace("http://www.w3.org/", "")


def test_every_experiment_brings_figures_for_the_page(hugeheap, tmp_path):
    """One without figures would be refused, and with it the page of all."""
    small = {
        "obmalloc": ["--workloads", "startup", "--policies", "auto", "--against", "none"],
        "give-back": ["--workloads", "instances", "--instances", "100000", "--policies", "none", "--idle", "0.1", "--cycles", "2"],
        "alloc-rate": ["--volume", "16M", "--against", "none", "--sizes", "16", "--nurseries", "64K,1M", "--no-instructions"],
        "gc": ["--workloads", "binary-trees,churn", "--size", "1M", "--depth", "8", "--against", "none"],
        "cow": ["--size", "4M", "--against", "none"],
        "stride": ["--size", "4M"],
        "stranded": ["--huge-pages", "8"],
        "startup": ["--size", "8M", "--deadline", "0.2"],
    }
    files = []
    for name, arguments in small.items():
        file = tmp_path / f"{name}.json"
        result = hugeheap("-q", "bench", name, *SMALL, *arguments, "--json", file)
        assert result.returncode == 0, (name, result.stderr)
        kinds = {figure["kind"] for figure in json.loads(file.read_text())["figures"]}
        assert "table" in kinds and kinds & {"bars", "lines"}, (name, kinds)
        files.append(file)
    result = hugeheap("report", *files, "-o", tmp_path / "report.html")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "report.html").read_text()
    assert all(f"bench {name}" in page for name in small)


def test_what_cannot_be_measured_is_named_and_nothing_is_left_of_it(hugeheap, tmp_path):
    (tmp_path / "obmalloc.json").write_text("{}")
    result = hugeheap(
        "bench", "all", *SMALL, "--only", "obmalloc", "-o", tmp_path, env={"PATH": "/no/such/directory"}
    )
    assert result.returncode == 3
    assert "not measured: status 3" in result.stdout
    assert not (tmp_path / "obmalloc.json").exists() and not (tmp_path / "report.html").exists()


def test_an_unknown_experiment_is_refused_with_the_list(hugeheap, tmp_path):
    result = hugeheap("bench", "all", "--only", "nothing", "-o", tmp_path)
    assert result.returncode == 2
    assert "nothing" in result.stderr and "stride" in result.stderr and "heap-pages" in result.stderr
