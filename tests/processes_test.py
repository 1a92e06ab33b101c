"""Commands in processes of their own."""

import os
import signal

import processes as programs
import pytest

from tf_contrastive.base import installation, processes


@pytest.mark.parametrize(
    ("words", "status", "last"),
    [
        (["--help"], 0, ""),
        (["nope"], 2, "unknown command 'nope'"),
        (["export", "--nope"], 2, "unknown flag --nope"),
    ],
)
def test_a_command_returns_its_status_and_last_line(words, status, last, capfd):
    ended = processes.run(words)
    assert ended[0] == status
    assert last in ended[1]
    assert ended[1] in capfd.readouterr().err


@pytest.mark.parametrize("word", ["--help", "encoders"])
def test_modules_of_the_current_folder_are_not_run(word, tmp_path, monkeypatch):
    names = ("json", "absl", "numpy", "select", "sitecustomize")
    for name in (*names, "tf_contrastive"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')")
    (tmp_path / "tf_contrastive").mkdir()
    monkeypatch.chdir(tmp_path)
    processes.run([word])
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("folder", ["", "tf_contrastive"])
def test_python_m_finds_the_modules_of_packages_first(folder, tmp_path):
    for name in ("json", "random", "string", "numpy", "tensorflow", "mine"):
        (tmp_path / f"{name}.py").write_text(f"open('{name}', 'w')")
    (tmp_path / folder).mkdir(exist_ok=True)
    flags = ["pretrain", "--dataset=digits", "--loss=mine:loss", "--smoke"]
    done = programs.run(
        programs.main(*flags),
        status=None,
        cwd=tmp_path,
        variables={"PYTHONPATH": installation.ROOT},
    )
    assert "unknown name in mine" in done.stderr
    executed = {p.name for p in tmp_path.iterdir() if p.is_file()}
    assert {name for name in executed if "." not in name} == {"mine"}


_PARENT = """
from tf_contrastive.base import processes
processes.command = lambda: {words}
print(*processes.run([]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_may_save_before_it_ends(number):
    """The terminal interrupts both processes; SIGTERM comes to the parent."""
    code = _PARENT.format(words=programs.python(programs.SAVES))
    with programs.start(programs.python(code)) as parent:
        parent.until("ready")
        if number == signal.SIGINT:
            os.killpg(parent.pid, number)
        else:
            parent.kill(number)
        assert parent.ended() == 0
        last = parent.output.splitlines()[-1]
    assert last == f"42 saved after {number.name}"
