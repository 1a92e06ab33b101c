"""What users see on stderr: how much of it, and in which colours."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tf_contrastive import __main__, terminal

_ROOT = Path(__file__).resolve().parents[1]
_RUN = (
    *("pretrain", "--dataset=digits", "--image_size=8", "--encoder=resnet10"),
    *("--width=0.25", "--epochs=2", "--batch_size=512", "--warmup_epochs=0"),
    *("--histograms_every_epochs=0", "--projector_examples=0"),
)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def said(monkeypatch):
    """Runs a command as on a terminal: status, stdout, stderr."""

    def run(*words):
        out, err = _Terminal(), _Terminal()
        monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        status = __main__.main()
        terminal.configure("normal")
        return status, out.getvalue(), err.getvalue()

    return run


def test_an_error_is_red_on_a_terminal_alone(said, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    status, out, err = said("pretrain", "--loss=supcn")
    assert status == 2 and not out
    assert err.startswith("\x1b[31mtf_contrastive:\x1b[0m --loss=supcn: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in said("pretrain", "--loss=supcn")[2]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in said("pretrain", "--loss=supcn")[2]


def test_an_error_is_one_line_whatever_is_in_it(capsys):
    terminal.error("no file 'a\nb': give another")
    assert capsys.readouterr().err.count("\n") == 1


def test_files_get_no_colours(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", "export"])
    assert __main__.main() == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_warning_is_told_however_quiet(capsys):
    try:
        terminal.configure("quiet")
        terminal.info("progress")
        terminal.warning("look out")
        assert capsys.readouterr().err == "look out\n"
    finally:
        terminal.configure("normal")
    terminal.info("progress")
    assert capsys.readouterr().err == "progress\n"


def _pretrain(folder, *flags):
    return subprocess.run(
        [
            *(sys.executable, "-m", "tf_contrastive", *_RUN),
            *(f"--workdir={folder}/run", *flags),
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=_without_levels(),
    )


def _without_levels():
    return {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}


def test_a_normal_run_tells_plain_lines_and_nothing_of_libraries(tmp_path):
    done = _pretrain(tmp_path)
    lines = done.stderr.splitlines()
    assert [line.split()[0] for line in lines] == (
        ["data", "views", "encoder", "loss", "workdir", "epoch", "epoch"]
    ), done.stderr
    assert "probe" in lines[-1] and "input wait" in lines[-1]
    assert "ETA" in lines[-1] and "images/s" in lines[-1]
    assert "\x1b" not in done.stderr and "\r" not in done.stderr


@pytest.mark.slow
def test_a_quiet_run_tells_its_result_alone(tmp_path):
    done = _pretrain(tmp_path, "--verbosity=quiet")
    assert done.stderr == ""
    assert "probe_accuracy" in done.stdout


@pytest.mark.slow
def test_debug_shows_what_libraries_say(tmp_path):
    done = _pretrain(tmp_path, "--verbosity=debug", "--epochs=1")
    assert "INFO:absl:" in done.stderr
    assert "epoch 1/1" in done.stderr


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
