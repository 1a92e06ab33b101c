"""What users see on stderr, and how much."""

import sys

import processes
import pytest
import small

from tf_contrastive.base import terminal


@pytest.mark.parametrize(
    ("word", "streams", "status", "unbuffered"),
    [
        ("--help", ">&-", 0, ""),
        ("--help", ">/dev/full", 0, ""),
        ("--help", ">/dev/full", 0, "1"),
        ("datasets", ">/dev/full", 0, ""),
        ("datasets", ">/dev/full", 0, "1"),
        ("--help", "2>&-", 0, ""),
        ("--help", "<&- >&- 2>&-", 0, ""),
        ("nope", "2>&-", 2, ""),
        ("nope", "2>/dev/full", 2, ""),
        ("nope", "2>/dev/full", 2, "1"),
    ],
)
def test_closed_and_full_streams_leave_the_status(
    word, streams, status, unbuffered
):
    command = f'exec "$0" -m tf_contrastive {word} {streams}'
    words = ["sh", "-c", command, sys.executable]
    variables = {"PYTHONUNBUFFERED": unbuffered}
    done = processes.run(words, status=status, variables=variables)
    assert ("output is lost" in done.stderr) == (streams == ">/dev/full")
    assert done.stderr.count("\n") <= 1
    assert ("usage" in done.stdout) == (streams.startswith("2") and not status)


def test_a_file_does_not_get_the_number_of_a_closed_stream(tmp_path):
    code = (
        "import os, sys; from tf_contrastive.base import terminal;"
        "terminal.prepare_streams(); file = open('x', 'w');"
        "os.write(1, b'lost');"
        "sys.exit(file.fileno() < 3)"
    )
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, code]
    package = {"PYTHONPATH": processes.ROOT}
    processes.run(command, cwd=tmp_path, variables=package)
    assert (tmp_path / "x").read_text() == ""


def test_an_error_is_one_line(capsys):
    terminal.error("no file 'a\nb': use another")
    assert capsys.readouterr().err.count("\n") == 1


def test_quiet_hides_progress_but_not_warnings(capsys):
    terminal.configure("quiet")
    terminal.info("progress")
    terminal.warning("look out")
    terminal.configure("normal")
    assert capsys.readouterr().err == "look out\n"


@pytest.mark.slow
def test_a_normal_run_prints_plain_lines_of_its_own(tmp_path):
    words = small.words(
        epochs=1, warmup_epochs=0, batch_size=128, workdir=f"{tmp_path}/run"
    )
    run = processes.small("pretrain", *words)
    run = ["env", "-u", "TF_CPP_MIN_LOG_LEVEL", *run]
    done = processes.run(run)
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines] == (
        ["data", "views", "encoder", "loss", "workdir", "step", "epoch"]
    ), done.stderr
    assert "probe" in lines[-1] and "input wait" in lines[-1]
    assert "images/s" in lines[-1]
    assert "\x1b" not in done.stderr and "\r" not in done.stderr
    # The run is finished: another command shows its result.
    quiet = processes.run([*run, "--verbosity=quiet"])
    assert quiet.stderr == "" and quiet.stdout


def test_warnings_are_written_once_by_a_command(capsys):
    for _ in range(2):
        terminal.configure("normal")
        for _ in range(2):
            terminal.warning("2 of 9 images")
            terminal.warning("3 of 9 images")
            terminal.info("progress")
        lines = capsys.readouterr().err.splitlines()
        once = ["2 of 9 images", "3 of 9 images"]
        assert lines == [*once, "progress", "progress"]
