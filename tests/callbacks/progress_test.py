"""Progress line, and the warning of a collapse."""

import io
import re

import counting_model

from tf_contrastive import callbacks


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_line_per_epoch_in_a_file_and_a_bar_on_a_terminal():
    file, terminal = io.StringIO(), _Terminal()
    counting_model.fit(
        [1, 2, 3, 4, 5, 6],
        3,
        counting_model.progress(file),
        counting_model.progress(terminal),
    )
    traced, first, last = file.getvalue().splitlines()
    assert traced == "step       being traced and compiled"
    assert first.startswith("epoch 1/2  step 3/6  loss 2.0000  ")
    assert last.startswith("epoch 2/2  step 6/6  loss 5.0000  ")
    assert re.search(r"images/s  input wait 0%  ETA \d:\d\d:\d\d$", first)
    assert last.endswith("ETA 0:00:00")
    assert "\r" not in file.getvalue()
    shown = terminal.getvalue()
    assert "\r\x1b[K[====        ] epoch 1/2  step 1/6" in shown
    assert shown.count("\n") == 2


def test_progress_of_a_long_epoch_is_written_to_a_file(monkeypatch):
    monkeypatch.setattr(callbacks.progress, "_INTERVAL", 0.0)
    file = io.StringIO()
    counting_model.fit([1, 2, 3, 4, 5, 6], 3, counting_model.progress(file))
    steps = re.findall(r"step (\d)/6", file.getvalue())
    assert steps == list("123456")


def _run_epochs(callback, *epochs):
    for epoch, (spread, loss) in enumerate(epochs):
        logs = {"embedding_std": spread, "alignment": 0.0, "loss": loss}
        callback.on_epoch_end(epoch, logs)


def test_collapse_and_chance_level_are_reported_once(capsys):
    texts = []
    callback = callbacks.CollapseWarning(4.844, write=texts.append)
    # Two epochs in a row are not enough.
    _run_epochs(callback, (0.01, 4), (0.01, 4), (0.5, 4), (0.9, 4.85))
    _run_epochs(callback, (0.9, 4.7), (0.9, 4.85), (0.01, 4.845))
    assert capsys.readouterr().err == "" and not texts
    _run_epochs(callback, (0.9, 4.84))
    assert "stayed at 4.840, the chance level" in capsys.readouterr().err
    _run_epochs(callback, *[(0.01, 4)] * 5)
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and message.startswith("collapse: ")
    assert len(texts) == 2 and message == f"{texts[1]}\n"
