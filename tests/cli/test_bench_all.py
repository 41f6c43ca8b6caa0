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
