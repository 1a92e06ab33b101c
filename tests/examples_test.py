"""The scripts of examples/ that read as notebooks: run, and looked at."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from PIL import Image

import tf_contrastive

_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
_NOTEBOOKS = ("own_loop", "fit_arrays", "evaluate_encoder")


def _read(name):
    return (_EXAMPLES / f"{name}.py").read_text("utf-8")


def _printed(name, tmp_path):
    """What an example prints, run from another folder."""
    # It takes the package of this test: a tree's, or an installed one.
    root = Path(tf_contrastive.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, _EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    return done.stdout


def _pair(pattern, printed):
    """The two numbers of the line that begins with a pattern."""
    (line,) = re.findall(rf"^{pattern}: (.*)$", printed, re.MULTILINE)
    first, second = re.findall(r"(\d+\.\d+) ", line + " ")
    return float(first), float(second)


# ---- What they show ----------------------------------------------------------


def test_a_loop_of_one_s_own_learns(tmp_path):
    printed = _printed("own_loop", tmp_path)
    first, last = _pair("loss", printed)
    # Random projections see about ln(511), others of a batch of two views.
    assert 5.5 < first < 7 and last < first - 0.5
    untrained, trained = _pair("kNN top-1", printed)
    assert trained > max(untrained, 0.96)
    untrained, trained = _pair("prototype top-1", printed)
    assert trained > untrained + 0.02


@pytest.mark.slow
def test_a_model_is_fitted_to_arrays(tmp_path):
    printed = _printed("fit_arrays", tmp_path)
    first, last = _pair("loss", printed)
    assert last < first - 2
    first, last = _pair("contrastive_accuracy", printed)
    assert last > first + 0.3
    first, last = _pair("probe_accuracy", printed)
    assert last > first + 0.3
    untrained, trained = _pair("kNN top-1", printed)
    assert trained > untrained and trained > 0.94


@pytest.mark.slow
def test_an_encoder_of_others_is_told_from_an_untrained_one(tmp_path):
    printed = _printed("evaluate_encoder", tmp_path)
    _, *rows, margin = [re.split(r"\s{2,}", x) for x in printed.splitlines()]
    found = {row[0]: row[1:] for row in rows}
    assert list(found) == [
        *("kNN", "prototype", "linear probe", "logistic regression")
    ]
    for name, (trained, untrained, interval, verdict) in found.items():
        low, high = map(float, interval.split(" to "))
        assert low <= float(trained) - float(untrained) <= high, name
        assert verdict in (("better", "tied") if low > 0 else ("tied",)), name
    assert float(found["kNN"][0]) > max(float(found["kNN"][1]), 0.96)
    assert found["prototype"][-1] == found["linear probe"][-1] == "better"
    assert re.fullmatch(
        r"margin: 0\.\d+ in the mean, least of digit \d", *margin
    )


# ---- How they are written ----------------------------------------------------


@pytest.mark.parametrize("name", _NOTEBOOKS)
def test_an_example_reads_as_a_notebook(name):
    start, *cells = re.split(r"^# %%", _read(name), flags=re.MULTILINE)
    assert ast.get_docstring(ast.parse(start))
    assert cells[0].startswith(" [markdown]\n")
    assert len(cells) >= 7
    for cell in cells:
        kind, _, text = cell.partition("\n")
        if kind == " [markdown]":
            lines = text.strip().splitlines()
            assert lines and all(re.match("# .", line) for line in lines)
        else:
            assert kind == "" and ast.parse(text).body
    # Text and code take turns, so that each cell is told before it is run.
    kinds = [cell.partition("\n")[0] for cell in cells]
    assert kinds.count(" [markdown]") >= len(kinds) // 2 - 1


def _uses(tree):
    """Yields (module, name) of all that is taken from the package."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and "tf_contrastive" in node.module:
            for alias in node.names:
                if node.module == "tf_contrastive":
                    modules[alias.asname or alias.name] = alias.name
                else:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module:
                yield f"tf_contrastive.{module}", node.attr


@pytest.mark.parametrize("name", _NOTEBOOKS)
def test_an_example_needs_nothing_that_is_private(name):
    used = set(_uses(ast.parse(_read(name))))
    assert used
    for module, attribute in used:
        short = module.removeprefix("tf_contrastive.")
        assert short in dir(tf_contrastive)
        found = importlib.import_module(module)
        member = getattr(found, attribute)
        own = getattr(member, "__module__", None) == module
        assert attribute in getattr(found, "__all__", ()) or own, attribute
        assert not attribute.startswith("_")
        assert member.__doc__


def test_the_guide_tells_of_every_example():
    page = _EXAMPLES.parent / "docs" / "guide" / "notebook.md"
    told = re.findall(r"examples/(\w+)\.py", page.read_text("utf-8"))
    assert set(told) == set(_NOTEBOOKS)


@pytest.mark.slow
def test_curves_of_runs_are_drawn_side_by_side(tmp_path):
    for name in ("one", "two"):
        writer = tf.summary.create_file_writer(str(tmp_path / name / "events"))
        with writer.as_default():
            for step in range(3):
                tf.summary.scalar("loss/contrastive", 1.0 / (step + 1), step)
                tf.summary.scalar("probe/accuracy", 0.3 * step, step)
        writer.close()

    def draw(*words):
        return subprocess.run(
            [sys.executable, _EXAMPLES / "draw_curves.py", *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(tf_contrastive.__file__).parents[1]),
            },
            capture_output=True,
            text=True,
        )

    done = draw("one", "two", "--output=curves.png")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "curves.png") as drawn:
        width, height = drawn.size
        assert width > 300 and height > 300
    # Of one run there is one column.
    assert draw("one", "--output=one.png").returncode == 0
    with Image.open(tmp_path / "one.png") as alone:
        assert alone.size == (width // 2, height)
    absent = draw("three")
    assert absent.returncode != 0 and "three: no run" in absent.stderr


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
