"""The scripts in examples/ run and print good results."""

import json
import re
import sys

import processes
import pytest
import tensorflow as tf
from PIL import Image

pytestmark = pytest.mark.early

_EXAMPLES = processes.ROOT / "examples"


def _run(name, folder, *words, status=0):
    """Runs an example in another folder."""
    return processes.run(
        [sys.executable, _EXAMPLES / f"{name}.py", *words],
        status=status,
        cwd=folder,
        variables={"PYTHONPATH": str(processes.ROOT)},
    )


def _printed(name, tmp_path):
    """Returns what an example prints, which writes no file."""
    printed = _run(name, tmp_path).stdout
    assert not list(tmp_path.iterdir())
    return printed


def _pair(pattern, printed):
    """Returns the two numbers of the line that starts with a pattern."""
    (line,) = re.findall(rf"^{pattern}: (.*)$", printed, re.MULTILINE)
    first, second = re.findall(r"(\d+\.\d+) ", line + " ")
    return float(first), float(second)


@pytest.mark.slow
def test_a_custom_loop_learns(tmp_path):
    printed = _printed("own_loop", tmp_path)
    first, last = _pair("loss", printed)
    # Chance level is about ln(511), for 512 views in a batch.
    assert 5.5 < first < 7 and last < first - 0.5
    untrained, trained = _pair("kNN top-1", printed)
    assert trained > max(untrained, 0.96)
    untrained, trained = _pair("prototype top-1", printed)
    assert trained > untrained + 0.02


@pytest.mark.slow
def test_a_model_learns_from_arrays(tmp_path):
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
def test_a_foreign_encoder_is_better_than_an_untrained_one(tmp_path):
    printed = _printed("evaluate_encoder", tmp_path)
    _, *rows, _ = [re.split(r"\s{2,}", x) for x in printed.splitlines()]
    scores = {row[0]: row[1:] for row in rows}
    assert len(scores) == 4
    for name, (supcon, trained, untrained, interval, _) in scores.items():
        assert float(supcon) > 0.95, name
        low, high = map(float, interval.split(" to "))
        assert low <= float(trained) - float(untrained) <= high, name
    assert scores["prototype"][-1] == scores["linear probe"][-1] == "better"


@pytest.mark.slow
def test_the_curves_of_runs_are_drawn_in_columns(tmp_path):
    for name in ("one", "two"):
        writer = tf.summary.create_file_writer(str(tmp_path / name / "events"))
        with writer.as_default():
            for step in range(3):
                tf.summary.scalar("loss/contrastive", 1.0 / (step + 1), step)
                tf.summary.scalar("probe/accuracy", 0.3 * step, step)
        writer.close()

    def width(*names):
        _run("draw_curves", tmp_path, *names, "--output=curves.png")
        with Image.open(tmp_path / "curves.png") as drawn:
            return drawn.width

    assert width("one", "two") == 2 * width("one") > 300
    absent = _run("draw_curves", tmp_path, "three", status=1)
    assert "three: no run" in absent.stderr


_OWN = ("own_loss", "own_views", "own_encoder", "own_data")


@pytest.mark.slow
@pytest.mark.parametrize("name", _OWN)
def test_a_part_of_your_own_runs(name, tmp_path):
    printed = _printed(name, tmp_path)
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
    assert len(program.strip().splitlines()) <= 40
    code = [line for line in program.splitlines() if line.strip()]
    assert len(code) <= 25
    cells = json.loads((_EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    notebook = "\n".join(
        "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"
    )
    _, _, body = program.partition('"""\n\n')
    body = body.replace('if __name__ == "__main__":\n', "")
    plain = [line.strip() for line in body.splitlines() if line.strip()]
    found = [line.strip() for line in notebook.splitlines() if line.strip()]
    assert found == plain
