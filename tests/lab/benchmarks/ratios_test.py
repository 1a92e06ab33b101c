"""All benchmarks in one table, and two files next to each other."""

import importlib
import json
import sys

import tensorflow as tf

from lab.benchmarks import measure, options
from tf_contrastive import __main__

_COMPARING = ("step", "loss", "input", "evaluation", "serving")


def _fake(monkeypatch, ratio):
    """Gives each benchmark a table of one ratio."""
    row = {"size": 64, "milliseconds": 1.0}
    report = measure.Report([row], ["-"], {"dense": ratio})
    for name in options.BENCHMARKS:
        module = importlib.import_module(f"lab.benchmarks.{name}")
        monkeypatch.setattr(module, "run", lambda *_: report)


def test_all_benchmarks_are_one_table_and_one_file(
    benchmark, monkeypatch, capsys
):
    _fake(monkeypatch, 2.5)
    status, content = benchmark("all", "--quick", "--repeats=5")
    assert status == 0
    # `views` is a picture.
    expected = {f"{name}: dense": 2.5 for name in _COMPARING}
    assert content["ratios"] == expected
    names = [row["benchmark"] for row in content["results"]]
    assert names == list(_COMPARING)
    shown = capsys.readouterr().out
    assert all(f"{case} " in shown for case in expected)
    assert shown.count("2.50") == len(expected)
    # What is set is kept; the rest is that of --quick.
    assert content["options"]["repeats"] == 5
    assert content["options"]["memory"] is False
    assert content["options"]["sizes"] == "1024,4096"


def test_two_files_are_compared(benchmark, tmp_path, monkeypatch, capsys):
    contents = []
    for ratio in (2.0, 3.0):
        _fake(monkeypatch, ratio)
        contents.append(benchmark("all")[1])
    contents[1]["environment"]["versions"]["tensorflow"] = "9.9"
    del contents[1]["ratios"]["step: dense"]

    def compare():
        files = [tmp_path / "a.json", tmp_path / "b.json"]
        for file, content in zip(files, contents, strict=True):
            file.write_text(json.dumps(content))
        words = ["benchmark", "--compare", *map(str, files)]
        monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        capsys.readouterr()
        return __main__.main(), capsys.readouterr()

    status, shown = compare()
    assert status == 0
    about_a, about_b, _, heading, *rows = shown.out.splitlines()
    assert f"tensorflow {tf.__version__}" in about_a
    assert "tensorflow 9.9" in about_b and "numpy" not in about_b
    assert heading.split()[-2:] == ["/", "first"]
    assert [row.split() for row in rows if row.strip(" -")] == [
        [f"{name}:", "dense", "2.00", "3.00", "1.50"] for name in _COMPARING[1:]
    ]
    contents[1]["ratios"] = {}
    status, shown = compare()
    assert status != 0
    assert "no comparison in common" in shown.err
