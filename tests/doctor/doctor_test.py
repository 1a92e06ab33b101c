"""The command's report, and measured input and steps."""

import json

import pytest
import small

from tf_contrastive import checkpoints, train
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import inspection


def _options(**changes):
    return fields.replace(Doctor(), **(small.DIGITS | changes))


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch):
    monkeypatch.setattr(inspection, "INPUT_SECONDS", 0.1)
    monkeypatch.setattr(inspection, "STEP_SECONDS", 3.0)


@pytest.mark.slow
@pytest.mark.keras
@small.encoder()
def test_the_command_reports_and_changes_nothing_but_its_file(capsys, tmp_path):
    flags = {"epochs": 1, "workdir": str(tmp_path), "temperature": 0.01}
    run = fields.replace(Pretrain(), **(small.DIGITS | flags))
    prepared = train.prepare(run)
    model, _ = prepared.build()
    saved = checkpoints.Checkpoints(
        model, prepared.options, prepared.source.info
    )
    saved.save()
    saved.finish()

    def files():
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in paths}

    before = files()
    assert small.command("doctor", *small.words(**flags)) == 0
    after = files()
    report = json.loads(after.pop(tmp_path / "doctor.json"))
    assert after == before
    assert report["data"]["examples"] == 256
    assert "0: 27" in report["data"]["class_sizes"]
    assert report["model"]["stem"] == "cifar"
    assert report["model"]["probe_parameters"] == 64 * 10 + 10
    assert report["schedule"]["peak_learning_rate"] == pytest.approx(0.25)
    assert report["batch"]["positives_per_anchor"] > 1
    sizes = report["memory"]
    assert report["memory_per_replica"]["total_mib"] > 0
    assert sizes["process_mib"] > 300 and sizes["available_mib"] > 0
    speeds = report["speed"]
    assert min(speeds["input_images_per_second"], speeds["hours"]) > 0
    assert list(report["warnings"]) == ["temperature"]
    printed = capsys.readouterr().out
    assert printed.startswith("warnings: 1\n  temperature: --temperature=0.01")


@pytest.mark.slow
@small.encoder()
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "cross_entropy", "mixup_alpha": 0.2, "virtual_devices": 2},
        {"loss": "moco", "queue_size": 64, "grad_cache_chunks": 2},
    ],
    ids=str,
)
def test_input_and_step_of_any_run_are_measured(changes):
    report = inspection.inspect(_options(**changes))
    facts = report.facts
    assert facts.step_speed > 0 and facts.input_speed > 0 and facts.hours > 0
    replicas = changes.get("virtual_devices", 1)
    assert report.sections["devices"]["replicas"] == replicas


@small.encoder()
def test_a_step_that_takes_too_long_is_not_begun(monkeypatch):
    monkeypatch.setattr(inspection, "STEP_SECONDS", 0.0)
    report = inspection.inspect(_options())
    assert report.facts.step_speed is None and report.facts.hours is None
    assert report.sections["speed"]["step_images_per_second"] is None
    assert report.facts.input_speed > 0
