"""Preemption: runs are saved at once, and resumed."""

import os
import signal
import time

import processes
import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints, train
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import preemption

pytestmark = pytest.mark.usefixtures("small_encoder")


def _run(workdir, **options):
    values = {"epochs": 3, "learning_rate": 0.5, "workdir": str(workdir)}
    return small.run(**values, **options)


def _signal_at(step, number, monkeypatch):
    """Sends this process a signal once `step` steps are trained."""
    real = preemption.PreemptionListener.stop_reason
    calls = []

    def stop_reason(self):
        calls.append(None)
        if len(calls) == step:
            os.kill(os.getpid(), number)
        return real(self)

    monkeypatch.setattr(
        preemption.PreemptionListener, "stop_reason", stop_reason
    )


@pytest.mark.slow
def test_a_signal_saves_and_the_same_command_resumes(
    tmp_path, monkeypatch, capfd
):
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        _signal_at(7, signal.SIGTERM, patch)
        with pytest.raises(errors.InterruptedRunError) as raised:
            train.pretrain(_run(tmp_path / "cut", steps_per_execution=1))
    assert raised.value.status == 42
    assert "ended by SIGTERM, saved at step 7" in str(raised.value)
    assert "SIGTERM: saving after this step" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
    assert checkpoints.load_run(str(tmp_path / "cut")).step == 7
    result = train.pretrain(_run(tmp_path / "cut"))
    assert (result.start_step, result.step) == (7, 12)


@pytest.mark.slow
def test_the_command_ends_with_the_status_to_resume(tmp_path):
    words = small.words(epochs=10_000, workdir=tmp_path)
    with processes.start(processes.small("pretrain", *words)) as run:
        processes.wait_for(lambda: small.newest(tmp_path), run)
        run.kill(signal.SIGTERM)
        assert run.ended() == 42, run.output
    step = checkpoints.load_run(str(tmp_path)).step
    assert f"ended by SIGTERM, saved at step {step:,}: repeat" in run.output
    assert "Traceback" not in run.output


def test_a_second_signal_ends_at_once():
    with preemption.PreemptionListener(
        tf.distribute.get_strategy()
    ) as listener:
        os.kill(os.getpid(), signal.SIGINT)
        assert listener.stop_reason() == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
