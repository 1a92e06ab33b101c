"""Claims that are run, resumed, tuned and reported."""

import json
import math

import pytest
import small

from lab.claims import measures, runs
from lab.commands import reproduce
from lab.commands.reproduce import Reproduce
from tf_contrastive.base import errors, processes
from tf_contrastive.config import fields

_TEXTS = {
    "diagnosis": "SupCon repels positives.",
    "note": "On free embeddings.",
    "tried": ["with 3 steps: not significant"],
    "printed": [
        {
            "item": "SI-T4",
            "value": "final",
            "rows": {"SupCon": ["SupCon"], "SINCERE": ["SINCERE"]},
            "columns": {"": "CIFAR-10 final"},
        }
    ],
}


def _claim(relations, **recipe):
    """A claim on free embeddings."""
    return {
        "claim": "SINCERE falls below SupCon",
        "items": ["SI-T4"],
        "cpu": {
            "shared": {"free_embeddings": {"images": 40}},
            "arms": {
                "SupCon": {"free_embeddings": {"loss": "supcon"}},
                "SINCERE": {"free_embeddings": {"loss": "sincere"}},
            },
            "values": {"final": ["free_embeddings", "final"]},
            "relations": relations,
            **recipe,
        },
    }


_ABOVE = {"left": "final of SupCon", "right": "final of SINCERE", "at_least": 1}
_BELOW = {"left": "final of SINCERE", "right": "final of SupCon", "at_least": 1}


def _patch(monkeypatch, numbers, name="free_embeddings", number="final"):
    """Replaces the numbers of a measure by those of a function of a unit."""

    def measure(unit, _):
        return lambda: {number: numbers(unit)}

    monkeypatch.setitem(measures.MEASURES, name, measure)


@pytest.fixture
def run(tmp_path):
    """Runs `reproduce` on claims that are passed as data."""

    def call(claims, **options):
        path = tmp_path / "claims.json"
        path.write_text(json.dumps(claims))
        options = {
            "claims": str(path),
            "workdir": str(tmp_path / "out"),
            **options,
        }
        return reproduce.run(fields.replace(Reproduce(), **options))

    return call


def test_a_claim_resumes_and_is_reported(run, tmp_path, monkeypatch, capsys):
    claims = {"A": _claim([_ABOVE], **_TEXTS)}
    calls = []

    def interrupted(unit):
        loss = unit.settings["free_embeddings"]["loss"]
        calls.append((loss, unit.seed))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"supcon": 3.0, "sincere": 1.0}[loss] + 0.01 * unit.seed

    _patch(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(claims, claim="A")
    path = tmp_path / "out/A/result.json"
    result = json.loads(path.read_text())
    assert result["verdict"] == "incomplete"
    assert len(result["units"]) == 3
    assert run(claims, claim="A") == 0
    assert "A: shown" in capsys.readouterr().out
    # All arms of a seed before the next seed; the interrupted unit again.
    order = [("supcon", 0), ("sincere", 0), ("supcon", 1), ("sincere", 1)]
    assert calls[:5] == [*order, ("sincere", 1)]
    assert len(calls) == 11
    # More seeds resume, too.
    assert run(claims, claim="A", seeds=6) == 0
    assert len(calls) == 13
    # Other relations are tested on the same runs; other arms need new runs.
    assert run({"A": _claim([_BELOW])}, claim="A", seeds=6) == 1
    assert len(calls) == 13
    with pytest.raises(errors.UserError, match="another recipe"):
        run({"A": _claim([_ABOVE], shared={"free_embeddings": {}})}, claim="A")
    assert run(claims, claim="A", seeds=6) == 0
    run(claims, list=True)
    assert "shown (cpu)" in capsys.readouterr().out

    docs = tmp_path / "docs"
    assert run(claims, report=True, report_dir=str(docs)) == 0
    pages = {x.name: x.read_text() for x in docs.glob("**/*.md")}
    (row,) = [x for x in pages["RESULTS.md"].splitlines() if "results/A" in x]
    assert "| **shown** | +2.000 in 6 of 6 seeds (paper +4.400) |" in row
    assert "4.69" in pages["A.md"]  # The paper's SupCon.
    for text in (_TEXTS["note"], _TEXTS["diagnosis"], *_TEXTS["tried"]):
        assert text in pages["A.md"]
    assert "| SI-T1 |" in pages["not_run.md"]
    assert "| SI-T4 |" not in pages["not_run.md"]
    assert (docs / "results/A/result.png").stat().st_size > 5000
    # Without the runs: from the results in the report's folder.
    run(claims, report=True, report_dir=str(docs), workdir=str(tmp_path / "no"))
    assert pages == {x.name: x.read_text() for x in docs.glob("**/*.md")}


def test_a_grid_is_extended_until_the_best_rate_is_inside(
    run, tmp_path, monkeypatch
):
    """a is best at 0.4 of 0.1 and 0.2; what diverges in b's grid loses."""
    calls = []

    def call(words):
        calls.append(words)
        diverging = {"--learning_rate=0.1", "--learning_rate=0.8"}
        if diverging & {*words} and "--loss=ntxent" in words:
            return 2, "error: the loss is not finite"
        return 0, ""

    def top1(unit):
        best = {"a": 0.4, "b": 9.0}[unit.arm]
        return -abs(_rate(unit.pretrain) - best)

    monkeypatch.setattr(processes, "run", call)
    monkeypatch.setattr(measures, "gate", lambda unit: None)
    _patch(monkeypatch, top1, "evaluation")
    grid = [[f"--learning_rate={rate}"] for rate in (0.1, 0.2)]
    recipe = {
        "seeds": 1,
        "shared": {"pretrain": ["--split=train"], "evaluate": []},
        "arms": {
            "a": {"pretrain": ["--loss=supcon"]},
            "b": {"pretrain": ["--loss=ntxent"]},
        },
        "values": {"1NN": ["evaluation", "final"]},
        "select": {
            "flags": {"a": grid, "b": grid},
            "value": "1NN",
            "pretrain": ["--split=train[:90%]"],
            "evaluate": ["--test_split=train[90%:]"],
        },
    }
    claims = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    assert run(claims, claim="A") == 0
    path = tmp_path / "out/A/result.json"
    result = json.loads(path.read_text())
    # All choices are made on a cut of train, the judged runs are of the whole.
    judged = f"--seed={runs.SELECTION_SEED}"
    for words in calls:
        if words[0] == "pretrain":
            cut = "--split=train[:90%]" in words
            assert cut == (judged in words)
    assert "--test_split=train[90%:]" in calls[1]
    assert "--test_split=train[90%:]" not in calls[-1]
    # Both arms alike.
    for arm in "ab":
        units = [u for u in result["selection"] if u["arm"] == arm]
        assert [_rate(u["flags"]) for u in units] == [0.1, 0.2, 0.4, 0.8]
    failed = [_rate(u["flags"]) for u in units if "failed" in u]
    assert failed == [0.1, 0.8]
    chosen = {"/a": ["--learning_rate=0.4"], "/b": ["--learning_rate=0.4"]}
    assert result["chosen"] == chosen
    # A result of before, with another rate: its units are run again.
    result["chosen"]["/a"] = ["--learning_rate=0.2"]
    path.write_text(json.dumps(result))
    calls.clear()
    assert run(claims, claim="A") == 0
    trained = [words for words in calls if words[0] == "pretrain"]
    assert ["--loss=supcon" in words for words in trained] == [True]
    assert _rate(trained[0]) == 0.4


def _rate(words):
    rates = [w for w in words if w.startswith("--learning_rate=")]
    return float(rates[-1].partition("=")[2])


_DIGITS = [
    *("--dataset=digits", "--image_size=8", "--encoder=resnet10"),
    *("--width=0.125", "--batch_size=128", "--epochs=1", "--views=1"),
    # Longer than an epoch: the last epoch is in the run's report only.
    *("--augmentation=none", "--log_every_steps=100", "--optimizer=sgd"),
    *small.FLAGS,
]


def _in_this_process(words):
    """Runs `python -m tf_contrastive ...` here, with a smaller encoder."""
    with small.encoder():
        return small.command(*words), ""


@pytest.mark.slow
def test_runs_are_shared_and_can_be_repeated_by_hand(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(processes, "run", _in_this_process)
    recipe = {
        "seeds": 1,
        "shared": {
            "pretrain": _DIGITS,
            "evaluate": ["--protocols=knn", "--scale=cpu", "--nountrained"],
        },
        "arms": {"sincere": {"pretrain": ["--loss=sincere"]}},
        "values": {
            "1NN": ["evaluation", "knn:k=1/top1"],
            "loss": ["training", "loss/contrastive/last_epoch"],
            "bound": ["training", "ln_noise"],
        },
    }
    claims = {n: {"claim": n, "items": ["SI-T4"], "cpu": recipe} for n in "AB"}
    assert [run(claims, claim=name) for name in "AB"] == [0, 0]
    folder = tmp_path / "out"
    first, second = (
        json.loads((folder / name / "result.json").read_text()) for name in "AB"
    )
    (workdir,) = (folder / "runs").iterdir()  # Of both claims.
    values = first["units"][0]["values"]
    assert values == second["units"][0]["values"]
    assert 0.5 < values["1NN"] <= 1
    # 127 other views, a tenth of them positives.
    assert values["bound"] == pytest.approx(math.log(116), abs=0.05)
    loss = json.loads((workdir / "pretrain.json").read_text())["loss"]
    assert values["loss"] == pytest.approx(loss, rel=1e-3)
    # The recorded command gives the same loss.
    assert str(tmp_path) not in json.dumps(first)
    words = first["units"][0]["commands"][0].split()[3:]
    assert words[-1].startswith("--workdir=reproduction/runs/")
    words[-1] = f"--workdir={tmp_path / 'by_hand'}"
    assert _in_this_process(words) == (0, "")
    again = json.loads((tmp_path / "by_hand/pretrain.json").read_text())
    assert again["loss"] == loss


@pytest.mark.parametrize(
    ("returned", "status", "message"),
    [(1, 2, r"failed.*pretrain.*resume"), (42, 42, "interrupted.*pretrain")],
)
def test_a_command_that_fails_ends_the_claim(
    run, monkeypatch, returned, status, message
):
    shared = {"pretrain": ["--dataset=digits"]}
    values = {"loss": ["training", "loss/contrastive/last_epoch"]}
    recipe = {"shared": shared, "arms": {"a": {}}, "values": values}
    claims = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    monkeypatch.setattr(processes, "run", lambda words: (returned, ""))
    with pytest.raises(errors.UserError, match=message) as error:
        run(claims, claim="A")
    assert error.value.status == status
