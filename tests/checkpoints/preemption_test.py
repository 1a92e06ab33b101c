"""Preemption: runs are saved at once, and resumed."""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import small
import tensorflow as tf

from tf_contrastive import checkpoints, train
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config import fields

pytestmark = pytest.mark.usefixtures("small_encoder")

_ROOT = Path(__file__).resolve().parents[2]


def _run(workdir, **options):
    values = {
        "dataset": "digits",
        "split": "train[:256]",
        "augmentation": "crop",
        "encoder": "resnet10",
        "width": 0.125,
        "projection_output": 16,
        "loss": "supcon",
        "batch_size": 64,
        "epochs": 3,
        "learning_rate": 0.5,
        "workdir": str(workdir),
    }
    return fields.replace(small.RUN, **(values | options))


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
    run = _run(tmp_path, epochs=10_000, log_every_steps=1)
    names = ("dataset", "split", "augmentation", "encoder", "width", "loss")
    values = fields.values(run)
    arguments = [f"--{name}={values[name]}" for name in names]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.small",
            "pretrain",
            *arguments,
            "--batch_size=64",
            "--epochs=10000",
            f"--workdir={tmp_path}",
        ],
        cwd=_ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not checkpoints.newest(str(tmp_path / "checkpoints"))[0]:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 42
    step = checkpoints.load_run(str(tmp_path)).step
    assert f"ended by SIGTERM, saved at step {step:,}: repeat" in output
    assert "Traceback" not in output


def test_a_second_signal_ends_at_once():
    with preemption.PreemptionListener(
        tf.distribute.get_strategy()
    ) as listener:
        os.kill(os.getpid(), signal.SIGINT)
        assert listener.stop_reason() == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)


@pytest.fixture
def cloud():
    """A metadata server like Google's: paths -> what it answers."""
    answers = {"preempted": "FALSE", "maintenance-event": "NONE"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Metadata-Flavor"] == "Google"
            path = self.path.removeprefix("/computeMetadata/v1/instance/")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[path].encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"localhost:{server.server_port}", answers
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "path,answer",
    [
        ("preempted", "TRUE"),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
    ],
)
def test_a_notice_of_the_cloud_is_a_reason_to_stop(
    path, answer, cloud, tmp_path, monkeypatch
):
    host, answers = cloud
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.05)
    with preemption.PreemptionListener(
        tf.distribute.get_strategy()
    ) as listener:
        # Live migration, which the machine survives.
        answers["maintenance-event"] = "MIGRATE_ON_HOST_MAINTENANCE"
        time.sleep(0.2)
        assert listener.stop_reason() is None
        answers["maintenance-event"] = "NONE"
        answers[path] = answer
        deadline = time.monotonic() + 30
        while listener.stop_reason() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (
            listener.stop_reason()
            == f"notice of the cloud machine, {path}: {answer}"
        )


@pytest.mark.slow
def test_a_missing_metadata_server_is_ignored(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "localhost:1")
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.05)
    with preemption.PreemptionListener(
        tf.distribute.get_strategy()
    ) as listener:
        time.sleep(0.2)
        assert listener.stop_reason() is None
