"""The scripts in examples/ run and print good results."""

import json
import re
import runpy
import sys

import processes
import pytest
import tensorflow as tf
from PIL import Image

pytestmark = pytest.mark.early

_EXAMPLES = processes.ROOT / "examples"


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Runs an example here; returns what it prints. It writes no file."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(_EXAMPLES / f"{name}.py"), run_name="__main__")
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().out

    return run


def _pair(pattern, printed):
    """Returns the two numbers of the line that starts with a pattern."""
    (line,) = re.findall(rf"^{pattern}: (.*)$", printed, re.MULTILINE)
    first, second = re.findall(r"(\d+\.\d+) ", line + " ")
    return float(first), float(second)


@pytest.mark.slow
def test_a_custom_loop_learns(printed):
    printed = printed("own_loop")
    first, last = _pair("loss", printed)
    # Chance level is about ln(511), for 512 views in a batch.
    assert 5.5 < first < 7 and last < first - 0.5
    untrained, trained = _pair("kNN top-1", printed)
    assert trained > max(untrained, 0.96)
    untrained, trained = _pair("prototype top-1", printed)
    assert trained > untrained + 0.02


@pytest.mark.slow
def test_a_model_learns_from_arrays(printed):
    printed = printed("fit_arrays")
    first, last = _pair("loss", printed)
    assert last < first - 2
    first, last = _pair("contrastive_accuracy", printed)
    assert last > first + 0.3
    first, last = _pair("probe_accuracy", printed)
    assert last > first + 0.3
    untrained, trained = _pair("kNN top-1", printed)
    assert trained > untrained and trained > 0.94


@pytest.mark.slow
def test_a_foreign_encoder_is_better_than_an_untrained_one(printed):
    printed = printed("evaluate_encoder")
    _, *rows, _ = [re.split(r"\s{2,}", x) for x in printed.splitlines()]
    scores = {row[0]: row[1:] for row in rows}
    assert len(scores) == 4
    for name, (supcon, trained, untrained, interval, _) in scores.items():
        assert float(supcon) > 0.95, name
        low, high = map(float, interval.split(" to "))
        assert low <= float(trained) - float(untrained) <= high, name
    assert scores["prototype"][-1] == scores["linear probe"][-1] == "better"


@pytest.mark.slow
def test_the_curves_of_runs_are_drawn(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path / "one" / "events"))
    with writer.as_default():
        for step in range(3):
            tf.summary.scalar("loss/contrastive", 1.0 / (step + 1), step)
    writer.close()
    draw = [sys.executable, _EXAMPLES / "draw_curves.py", "--output=curves.png"]
    where = {
        "cwd": tmp_path,
        "variables": {"PYTHONPATH": str(processes.ROOT)},
    }
    processes.run([*draw, "one"], **where)
    with Image.open(tmp_path / "curves.png") as drawn:
        assert drawn.width > 200
    absent = processes.run([*draw, "three"], status=1, **where)
    assert "three: no run" in absent.stderr


_OWN = ("own_loss", "own_views", "own_encoder", "own_data")


@pytest.mark.slow
@pytest.mark.parametrize("name", _OWN)
def test_a_part_of_your_own_runs(name, printed):
    printed = printed(name)
    if name == "own_loss":
        values = [float(x) for x in re.findall(r"- loss: ([\d.]+)", printed)]
        assert values[-1] < values[0] - 0.5
    elif name == "own_data":
        assert printed.splitlines()[0] == "1397 10"
    elif name == "own_encoder":
        assert printed.splitlines()[-1] == "(1, 16)"


@pytest.mark.parametrize("name", _OWN)
def test_a_part_of_your_own_is_the_guides_and_the_notebooks(name):
    program = (_EXAMPLES / f"{name}.py").read_text()
    guide = _EXAMPLES.parent / "docs" / "guide" / "own_parts.md"
    part, _, _ = program.partition("\n\nif __name__")
    assert f"```python\n{part.rstrip()}\n```" in guide.read_text()
    cells = json.loads((_EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    notebook = "\n".join(
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
    )
    _, _, body = program.partition('"""\n\n')
    body = body.replace('if __name__ == "__main__":\n', "")
    plain = [line.strip() for line in body.splitlines() if line.strip()]
    found = [line.strip() for line in notebook.splitlines() if line.strip()]
    assert found == plain
