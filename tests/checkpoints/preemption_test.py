"""Preemption: a run is saved at once, and the same command resumes it."""

import os
import signal
import time

import processes
import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints
from tf_contrastive.checkpoints import preemption


@pytest.mark.slow
def test_a_signal_saves_and_the_same_command_resumes(tmp_path):
    words = small.words(epochs=10_000, workdir=tmp_path)
    for resumed in (False, True):
        step = small.newest(tmp_path) if resumed else 0
        with processes.start(processes.small("pretrain", *words)) as run:
            processes.wait_for(lambda at=step: small.newest(tmp_path) > at, run)
            run.kill(signal.SIGTERM)
            assert run.ended() == 42, run.output
        assert (f"resumed at step {step:,}" in run.output) == resumed
        assert "SIGTERM: saving after this step" in run.output
        last = checkpoints.load_run(str(tmp_path)).step
        assert f"ended by SIGTERM, saved at step {last:,}: repeat" in run.output
        assert "Traceback" not in run.output


def test_a_second_signal_ends_at_once():
    before = signal.getsignal(signal.SIGTERM)
    strategy = tf.distribute.get_strategy()
    with preemption.PreemptionListener(strategy) as listener:
        os.kill(os.getpid(), signal.SIGINT)
        assert listener.stop_reason() == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) == before
