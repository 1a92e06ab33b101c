"""Claims: their data, what is run for them, and the verdicts."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import small
from scipy import stats

from tf_contrastive import __main__, errors, flags
from tf_contrastive.commands import reproduce
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.reproduce import Reproduce
from tf_contrastive.papers.claims import (
    definitions,
    measures,
    runs,
    verdicts,
)

# The tables and figures of the four papers, which `--list` must cover.
_ITEMS = """
SC-T1 SC-T2 SC-T3 SC-T4 SC-T5 SC-F3 SC-NP SC-TAU SC-SPEED
IP-T1 IP-T2 IP-T3 IP-T4 IP-D1 IP-D2 IP-D3
IP-F1 IP-F2 IP-F3 IP-F4 IP-F5 IP-F6 IP-F7 IP-FB1 IP-FB2 IP-FC1 IP-FE1
SI-T1 SI-T2 SI-T3 SI-T4 SI-T5 SI-T6 SI-F1 SI-F2 SI-F3 SI-F4
SR-T1 SR-TL SR-T2 SR-T3 SR-T4 SR-T5 SR-T6 SR-X4 SR-X1
SR-T7 SR-T8 SR-T9 SR-T10 SR-T11
SR-F1 SR-F4 SR-F5 SR-F6 SR-F7 SR-F8 SR-F9 SR-F10 SR-F12 SR-F13 SR-F14 SR-F15
"""

_FREE = {
    "images": 40,
    "dimension": 16,
    "temperature": 0.1,
    "spread": 0.1,
    "steps": 30,
    "learning_rate": 0.1,
    "classes": 4,
}


_TEXTS = {
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
            "shared": {"free_embeddings": _FREE},
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
_EQUAL = {"left": "final of SupCon", "right": "final of SupCon", "at_least": 0}


def _fake_measure(unit):
    loss = unit.settings["free_embeddings"]["loss"]
    return {"final": {"supcon": 3.0, "sincere": 1.0}[loss] + 0.01 * unit.seed}


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


# ---- Definitions -------------------------------------------------------------


def test_the_list_covers_every_table_and_figure(capsys):
    assert reproduce.run(fields.replace(Reproduce(), list=True)) == 0
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == list(definitions.items())
    assert sorted(names) == sorted(_ITEMS.split())


def test_the_papers_numbers():
    items = definitions.items()
    assert items["SI-T1"].cell(["SINCERE", 50, 512], "CIFAR-2") == 0.972
    assert items["SI-T4"].cell(["SupCon"], "CIFAR-100 final") == 2.37
    assert items["SC-T1"].cell([], "3") == 76.6
    assert items["IP-T4"].cell(["SimCLR τ=.2", "1st"], "60") == 24.9
    assert items["SR-T7"].cell([256], "100 sqrt") == 62.8
    assert items["SR-T8"].cell(["R50 4\u00d7"], "1% top-5") == 86.6
    assert items["IP-D1"].cell(["SWD normal", 1024], "100") == 83.3
    with pytest.raises(KeyError):
        items["SC-T1"].cell([], "4")


def test_every_claim_has_valid_commands_and_printed_values():
    known = definitions.claims()
    assert {"SI-T1", "SI-T4", "SC-T1"} <= set(known)
    kinds = {"pretrain": Pretrain, "evaluate": Evaluate}
    for claim in known.values():
        for scale, recipe in claim.recipes.items():
            assert recipe.seeds >= verdicts.MIN_SEEDS or scale == "paper"
            units = list(runs.plan(recipe, runs.Folders("w", "d"), 2))
            assert len(units) == 2 * len(list(recipe.units()))
            for name, *words in [c for u in units for c in u.commands]:
                flags.parse(kinds[name], words).validate()
            for table in recipe.printed:
                for arm in table.rows:
                    assert any(
                        recipe.paper_value(case, arm, table.value)
                        for case in recipe.cases
                    )


def test_arms_differ_only_in_their_loss():
    recipe = definitions.claims()["SI-T1"].recipe("cpu")
    for case in recipe.cases:
        one = recipe.settings(case, "SupCon")["pretrain"]
        other = recipe.settings(case, "SINCERE")["pretrain"]
        assert set(one) ^ set(other) == {"--loss=supcon", "--loss=sincere"}


# ---- Verdicts ----------------------------------------------------------------


def test_sign_flips_are_counted():
    assert verdicts.sign_flip([1.0]) == 0.5
    assert verdicts.sign_flip([0.3, 0.1, 0.2, 0.5, 0.4]) == 1 / 32
    # Two sign assignments of 2, 3, -1 reach their sum 4: +++ and ++-.
    assert verdicts.sign_flip([2.0, 3.0, -1.0]) == 2 / 8
    assert verdicts.sign_flip([0.0] * 5) == 1.0
    for invalid in ([], [1.0, math.nan]):
        with pytest.raises(errors.UserError, match="differences"):
            verdicts.sign_flip(invalid)


def test_many_pairs_approximate_the_t_test():
    sample = np.random.RandomState(0).normal(0.4, 1.0, 30)
    expected = stats.ttest_1samp(sample, 0, alternative="greater").pvalue
    assert abs(verdicts.sign_flip(sample) - expected) < 0.01


@pytest.mark.parametrize(
    ("left", "bound", "at_least", "verdict"),
    [
        ([3, 4, 3, 5, 4], 2.0, True, "holds"),
        ([3, 4, 3, 5, 4], 5.5, True, "fails"),
        ([3, 4, 3, 5, 4], 4.0, True, "not significant"),
        ([3, 4, 3, 5, 4], 5.5, False, "holds"),
        ([3, 4, 3, 5, 4], 2.0, False, "fails"),
        ([3, 4, 3, 5], 2.0, True, "not significant"),  # 1/16 at best.
    ],
)
def test_a_relation_is_tested_against_its_bound(left, bound, at_least, verdict):
    judged = verdicts.judge(left, [0.0] * len(left), bound, at_least)
    assert judged["verdict"] == verdict


def test_all_relations_must_hold():
    assert verdicts.combine(["holds", "holds"]) == "holds"
    assert verdicts.combine(["holds", "not significant"]) == "not significant"
    assert verdicts.combine(["not significant", "fails"]) == "fails"
    assert verdicts.combine(["fails", "incomplete"]) == "incomplete"


# ---- Measures ----------------------------------------------------------------


def test_free_embeddings_reach_the_bounds_of_their_losses():
    recipe = definitions.claims()["SI-T4"].recipe("cpu")
    found = {}
    for loss in ("supcon", "sincere"):
        options = {"free_embeddings": _FREE | {"loss": loss}}
        unit = measures.Unit("free, 4 classes", loss, 0, options)
        found[loss] = measures.values(recipe, unit)
    supcon, sincere = found["supcon"], found["sincere"]
    # 80 embeddings: of 79 others, 19 have the anchor's class.
    assert supcon["ln(others)"] == pytest.approx(math.log(79))
    assert supcon["ln(positives)"] == pytest.approx(math.log(19))
    assert supcon["ln(1 + negatives)"] == pytest.approx(math.log(61))
    assert supcon["initial"] == pytest.approx(math.log(79), abs=0.1)
    assert sincere["initial"] == pytest.approx(math.log(61), abs=0.1)
    assert supcon["final"] > math.log(19) > 1 + sincere["final"]


# ---- Running -----------------------------------------------------------------


def test_a_claim_resumes_and_is_reported(run, tmp_path, monkeypatch, capsys):
    claims = {"A": _claim([_ABOVE], **_TEXTS)}
    calls = []

    def interrupted(unit):
        calls.append((unit.settings["free_embeddings"]["loss"], unit.seed))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return _fake_measure(unit)

    monkeypatch.setitem(measures.MEASURES, "free_embeddings", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(claims, claim="A")
    result = runs.read("A", str(tmp_path / "out"))
    assert result["verdict"] == "incomplete"
    assert len(result["units"]) == 3
    assert run(claims, claim="A") == 0
    assert "A: holds" in capsys.readouterr().out
    # All arms of a seed before the next seed; the interrupted unit again.
    order = [("supcon", 0), ("sincere", 0), ("supcon", 1), ("sincere", 1)]
    assert calls[:5] == [*order, ("sincere", 1)]
    assert len(calls) == 11
    # More seeds resume, too; another recipe does not.
    assert run(claims, claim="A", seeds=6) == 0
    assert len(calls) == 13
    with pytest.raises(errors.UserError, match="another recipe"):
        run({"A": _claim([_BELOW])}, claim="A")
    run(claims, list=True)
    assert "holds (cpu)" in capsys.readouterr().out

    docs = tmp_path / "docs"
    assert run(claims, report=True, report_dir=str(docs)) == 0
    text = (docs / "RESULTS.md").read_text()
    assert "**holds**" in text
    assert "4.69" in text  # The paper's SupCon.
    assert _TEXTS["note"] in text
    assert f"Tried before: {_TEXTS['tried'][0]}" in text
    assert "| SI-T1 |" in text.split("## Not run here")[1]
    assert "| SI-T4 |" not in text.split("## Not run here")[1]
    assert (docs / "results/A/result.png").stat().st_size > 5000
    # Without the runs: from the results in the report's folder.
    run(claims, report=True, report_dir=str(docs), workdir=str(tmp_path / "no"))
    assert (docs / "RESULTS.md").read_text() == text


@pytest.mark.parametrize(
    ("relation", "status", "verdict"),
    [(_BELOW, 1, "fails"), (_EQUAL, 0, "not significant")],
)
def test_verdicts_and_exit_status(
    run, monkeypatch, capsys, relation, status, verdict
):
    monkeypatch.setitem(measures.MEASURES, "free_embeddings", _fake_measure)
    assert run({"A": _claim([relation])}, claim="A") == status
    assert f"A: {verdict}" in capsys.readouterr().out


_DIGITS = [
    "--dataset=digits",
    "--image_size=8",
    "--encoder=resnet10",
    "--width=0.125",
    "--batch_size=128",
    "--epochs=1",
    "--views=1",
    "--augmentation=none",
    "--log_every_steps=1",
    "--optimizer=sgd",
    *small.FLAGS,
]


def _in_this_process(words, **_):
    """Runs `python -m tf_contrastive ...` here, with a smaller encoder."""
    assert words[1:3] == ["-m", "tf_contrastive"]
    with pytest.MonkeyPatch.context() as patch, small.encoder():
        patch.setattr(sys, "argv", words[2:])
        return subprocess.CompletedProcess(words, __main__.main())


@pytest.mark.slow
def test_runs_are_shared_and_can_be_repeated_by_hand(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(subprocess, "run", _in_this_process)
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
    first, second = (runs.read(name, str(folder)) for name in "AB")
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
    words = first["units"][0]["commands"][0].split()[1:]
    assert words[-1].startswith("--workdir=reproduction/runs/")
    words[-1] = f"--workdir={tmp_path / 'by_hand'}"
    assert _in_this_process([sys.executable, *words]).returncode == 0
    again = json.loads((tmp_path / "by_hand/pretrain.json").read_text())
    assert again["loss"] == loss


@pytest.mark.parametrize(
    ("returned", "status", "message"),
    [(1, 2, r"failed.*pretrain.*resume"), (42, 42, "interrupted.*pretrain")],
)
def test_a_command_that_fails_ends_the_claim(
    run, monkeypatch, returned, status, message
):
    recipe = {
        "shared": {"pretrain": ["--dataset=digits"]},
        "arms": {"a": {}},
        "values": {"loss": ["training", "loss/contrastive/last_epoch"]},
    }
    claims = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    process = subprocess.CompletedProcess([], returned)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: process)
    with pytest.raises(errors.UserError, match=message) as error:
        run(claims, claim="A")
    assert error.value.status == status


def test_recorded_commands_name_no_folder_of_the_machine():
    # A workdir whose letters occur in every word.
    folders = runs.Folders("e", "/data/of/mine")
    recipe = definitions.claims()["SI-T1"].recipe("cpu")
    lines = [
        folders.portable(words)
        for unit in runs.plan(recipe, folders, 1)
        for words in unit.commands
    ]
    assert all("--data_dir=DATA" in line for line in lines)
    assert all("--workdir=reproduction/runs/cifar-" in line for line in lines)
    assert "--encoder=resnet10" in lines[0]
    assert "/data/of/mine" not in " ".join(lines)


def test_a_dry_run_prints_the_commands(capsys):
    options = {"claim": "SI-T1", "dry_run": True, "seeds": 1}
    reproduce.run(fields.replace(Reproduce(), **options))
    lines = capsys.readouterr().out.splitlines()
    assert sum(" pretrain " in line for line in lines) == 4
    assert sum(" evaluate " in line for line in lines) == 4


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
