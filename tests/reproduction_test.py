"""Claims: their data, what is run for them, and the verdicts."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import small

from tf_contrastive import errors, flags
from tf_contrastive.commands import reproduce
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.reproduce import Reproduce
from tf_contrastive.papers.claims import (
    definitions,
    measures,
    report,
    runs,
    verdicts,
)

# Every table and figure of the sheet's section on results, transcribed here:
# what `--list` must cover.
_TABLES = [
    "SC-T1",
    "SC-T2",
    "SC-T3",
    "SC-T4",
    "SC-T5",
    "SC-F3",
    "SC-NP",
    "SC-TAU",
    "SC-SPEED",
    "IP-T1",
    "IP-T2",
    "IP-T3",
    "IP-T4",
    "IP-D1",
    "IP-D2",
    "IP-D3",
    "IP-F1",
    "IP-F2",
    "IP-F3",
    "IP-F4",
    "IP-F5",
    "IP-F6",
    "IP-F7",
    "IP-FB1",
    "IP-FB2",
    "IP-FC1",
    "IP-FE1",
    "SI-T1",
    "SI-T2",
    "SI-T3",
    "SI-T4",
    "SI-T5",
    "SI-T6",
    "SI-F1",
    "SI-F2",
    "SI-F3",
    "SI-F4",
    "SR-T1",
    "SR-TL",
    "SR-T2",
    "SR-T3",
    "SR-T4",
    "SR-T5",
    "SR-T6",
    "SR-X4",
    "SR-X1",
    "SR-T7",
    "SR-T8",
    "SR-T9",
    "SR-T10",
    "SR-T11",
    "SR-F1",
    "SR-F4",
    "SR-F5",
    "SR-F6",
    "SR-F7",
    "SR-F8",
    "SR-F9",
    "SR-F10",
    "SR-F12",
    "SR-F13",
    "SR-F14",
    "SR-F15",
]

_FREE = {
    "images": 40,
    "dimension": 16,
    "temperature": 0.1,
    "spread": 0.1,
    "steps": 30,
    "learning_rate": 0.1,
    "classes": 4,
}


def _claim(**recipe):
    """A claim on free embeddings, which takes a second."""
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
            **recipe,
        },
    }


def _relations(*relations):
    return _claim(relations=list(relations))


_ABOVE = {"left": "final of SupCon", "right": "final of SINCERE", "at_least": 1}
_BELOW = {"left": "final of SINCERE", "right": "final of SupCon", "at_least": 1}
# 0.0 of 0.0: neither side of the bound.
_EQUAL = {"left": "final of SupCon", "right": "final of SupCon", "at_least": 0}


@pytest.fixture
def run(tmp_path):
    """Runs `reproduce` on claims given as data."""

    def call(found, **options):
        path = tmp_path / "claims.json"
        path.write_text(json.dumps(found))
        options = {
            "claims": str(path),
            "workdir": str(tmp_path / "out"),
            **options,
        }
        return reproduce.run(fields.replace(Reproduce(), **options))

    return call


# ---- Data --------------------------------------------------------------------


def test_the_list_covers_every_table_and_figure(capsys):
    assert reproduce.run(fields.replace(Reproduce(), list=True)) == 0
    shown = [
        line.split()[0]
        for line in capsys.readouterr().out.split("\n\n")[1].splitlines()
    ]
    assert shown[1:] == list(definitions.items())
    assert sorted(shown[1:]) == sorted(_TABLES)


def test_the_list_tells_how_claims_came_out(run, capsys):
    run({"SI-T4": _relations(_ABOVE)}, claim="SI-T4", seeds=1)
    capsys.readouterr()
    run({"SI-T4": _relations(_ABOVE)}, list=True)
    told = capsys.readouterr().out
    line = next(x for x in told.splitlines() if x.startswith("SI-T4"))
    assert "not significant (cpu)" in line


def test_the_papers_numbers_are_those_printed():
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


def test_every_claim_of_the_package_can_be_planned():
    known = definitions.claims()
    assert {"SI-T1", "SI-T4", "SC-T1"} <= set(known)
    for claim in known.values():
        for scale, recipe in claim.recipes.items():
            assert recipe.seeds >= verdicts.FEWEST or scale == "paper"
            units = list(runs.plan(recipe, runs.Place("w", "d"), recipe.seeds))
            assert len(units) == recipe.seeds * len(list(recipe.units()))
            for unit in units:
                for command in unit.commands:
                    kind = {
                        "pretrain": Pretrain,
                        "evaluate": Evaluate,
                    }[command.name]
                    flags.parse(kind, list(command.flags)).validate()
            for place in recipe.printed:
                for arm in place.rows:
                    assert any(
                        report.printed(recipe, case, arm, place.value)
                        for case in recipe.cases
                    )


def test_arms_of_a_claim_differ_by_what_is_claimed_alone():
    recipe = definitions.claims()["SI-T1"].recipe("cpu")
    for case in recipe.cases:
        one = recipe.settings(case, "SupCon")["pretrain"]
        other = recipe.settings(case, "SINCERE")["pretrain"]
        assert set(one) ^ set(other) == {"--loss=supcon", "--loss=sincere"}


# ---- Verdicts ----------------------------------------------------------------


def test_sign_flips_are_counted():
    assert verdicts.sign_flip([1.0]) == 0.5
    assert verdicts.sign_flip([0.3, 0.1, 0.2, 0.5, 0.4]) == 1 / 32
    # Of 2 + 3 - 1 the assignments that reach 4 are +++ and ++-.
    assert verdicts.sign_flip([2.0, 3.0, -1.0]) == 2 / 8
    assert verdicts.sign_flip([0.0] * 5) == 1.0


def test_many_pairs_are_sampled_near_the_t_test():
    from scipy import stats

    draws = np.random.RandomState(0).normal(0.4, 1.0, 30)
    expected = stats.ttest_1samp(draws, 0, alternative="greater").pvalue
    assert abs(verdicts.sign_flip(draws) - expected) < 0.01


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
def test_a_relation_is_judged_against_its_minimal_effect(
    left, bound, at_least, verdict
):
    found = verdicts.judge(left, [0.0] * len(left), bound, at_least)
    assert found["verdict"] == verdict


def test_all_relations_must_hold():
    assert verdicts.combine(["holds", "holds"]) == "holds"
    assert verdicts.combine(["holds", "not significant"]) == "not significant"
    assert verdicts.combine(["not significant", "fails"]) == "fails"
    assert verdicts.combine(["fails", "incomplete"]) == "incomplete"


def test_differences_must_be_numbers():
    with pytest.raises(errors.UserError, match="one number for each seed"):
        verdicts.sign_flip([])
    with pytest.raises(errors.UserError, match="one number for each seed"):
        verdicts.sign_flip([1.0, math.nan])


# ---- Running -----------------------------------------------------------------


@pytest.mark.slow
def test_claims_hold_fail_and_stay_open(run, capsys):
    status = {
        verdict: run({name: _relations(relation)}, claim=name)
        for name, relation, verdict in [
            ("A", _ABOVE, "holds"),
            ("B", _BELOW, "fails"),
            ("C", _EQUAL, "not significant"),
        ]
    }
    assert status == {"holds": 0, "fails": 1, "not significant": 0}
    out = capsys.readouterr().out
    assert "A: holds" in out
    assert "B: fails" in out
    assert "C: not significant" in out


@pytest.mark.slow
def test_a_claim_goes_on_where_it_was(run, tmp_path, monkeypatch):
    found = {"A": _relations(_ABOVE)}
    calls = []
    whole = measures.MEASURES["free_embeddings"]

    def counted(unit):
        calls.append((unit.settings["free_embeddings"]["loss"], unit.seed))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(unit)

    monkeypatch.setitem(measures.MEASURES, "free_embeddings", counted)
    with pytest.raises(KeyboardInterrupt):
        run(found, claim="A")
    result = runs.read("A", str(tmp_path / "out"))
    assert result["verdict"] == "incomplete"
    assert len(result["units"]) == 3
    assert run(found, claim="A") == 0
    # All arms of a seed before the next; the one that was broken off again.
    assert calls[:4] == [
        ("supcon", 0),
        ("sincere", 0),
        ("supcon", 1),
        ("sincere", 1),
    ]
    assert calls[4] == ("sincere", 1)
    assert len(calls) == 11
    # More seeds go on, too; another recipe does not.
    assert run(found, claim="A", seeds=6) == 0
    assert len(calls) == 13
    with pytest.raises(errors.UserError, match="another recipe"):
        run({"A": _relations(_BELOW)}, claim="A")


def test_a_report_is_made_of_result_files_alone(run, tmp_path, capsys):
    found = {
        "A": _claim(
            relations=[_ABOVE],
            note="On free embeddings.",
            tried=["with 3 steps: not significant"],
            printed=[
                {
                    "item": "SI-T4",
                    "value": "final",
                    "rows": {"SupCon": ["SupCon"], "SINCERE": ["SINCERE"]},
                    "columns": {"": "CIFAR-10 final"},
                }
            ],
        )
    }
    run(found, claim="A")
    docs = tmp_path / "docs"
    assert run(found, report=True, report_dir=str(docs)) == 0
    text = (docs / "RESULTS.md").read_text()
    assert "**holds**" in text
    assert "4.69" in text  # The paper's SupCon.
    assert "On free embeddings." in text
    assert "Tried before: with 3 steps" in text
    assert "| SI-T1 |" in text.split("## Not run here")[1]
    assert "| SI-T4 |" not in text.split("## Not run here")[1]
    assert (docs / "results/A/result.png").stat().st_size > 5000
    # Without the runs: from what the report kept.
    run(found, report=True, report_dir=str(docs), workdir=str(tmp_path / "no"))
    assert (docs / "RESULTS.md").read_text() == text


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


@pytest.mark.slow
def test_runs_are_commands_shared_by_claims_and_selected_on_train(
    run, tmp_path, capfd
):
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
    choice = {
        "select": {
            "grid": {"learning_rate": ["1e-9", "0.3"]},
            "pretrain": ["--split=train[:80%]"],
            "evaluate": [
                "--protocols=knn",
                "--scale=cpu",
                "--nountrained",
                "--train_split=train[:80%]",
                "--test_split=train[80%:]",
            ],
            "value": "1NN",
        }
    }
    found = {
        name: {"claim": name, "items": ["SI-T4"], "cpu": recipe | extra}
        for name, extra in (("A", {}), ("B", {}), ("C", choice))
    }
    assert run(found, claim="A") == 0
    assert run(found, claim="B") == 0
    folder = tmp_path / "out"
    first, second = (runs.read(name, str(folder)) for name in "AB")
    assert len(list((folder / "runs").iterdir())) == 1  # Shared.
    values = first["units"][0]["values"]
    assert values == second["units"][0]["values"]
    assert 0.5 < values["1NN"] <= 1
    # 127 others, a tenth of them positives.
    assert values["bound"] == pytest.approx(math.log(116), abs=0.05)
    (done,) = (folder / "runs").iterdir()
    told = json.loads((done / "pretrain.json").read_text())["loss"]
    assert values["loss"] == pytest.approx(told, rel=1e-3)
    # What a user would type gives the same.
    (command, _) = first["units"][0]["commands"]
    words = command.split()[1:]
    assert words[-1].startswith("--workdir=reproduction/runs/")
    assert str(tmp_path) not in json.dumps(first)
    words[-1] = f"--workdir={tmp_path / 'by_hand'}"
    subprocess.run([sys.executable, *words], check=True)
    one, other = (
        json.loads((path / "pretrain.json").read_text())["loss"]
        for path in (tmp_path / "by_hand", next((folder / "runs").iterdir()))
    )
    assert one == other
    assert run(found, claim="C") == 0
    third = runs.read("C", str(folder))
    assert list(third["chosen"]) == ["/sincere"]
    assert len(list((folder / "runs").glob("*seed1000*"))) == 2
    assert third["chosen"]["/sincere"][0] in third["units"][0]["commands"][0]


def test_a_failing_command_is_told_and_nothing_is_lost(run, tmp_path):
    recipe = {
        "shared": {"pretrain": ["--dataset=digits", "--loss=no_such_loss"]},
        "arms": {"a": {}},
        "values": {"loss": ["training", "loss/contrastive/last_epoch"]},
    }
    found = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    with pytest.raises(errors.UserError, match=r"failed.*pretrain.*goes on"):
        run(found, claim="A")


def test_a_stopped_command_ends_the_claim_as_a_run_is_ended(run, monkeypatch):
    recipe = {
        "shared": {"pretrain": ["--dataset=digits"]},
        "arms": {"a": {}},
        "values": {"loss": ["training", "loss/contrastive/last_epoch"]},
    }
    found = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    stopped = subprocess.CompletedProcess([], 42)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: stopped)
    with pytest.raises(errors.UserError, match="told to end") as error:
        run(found, claim="A")
    assert error.value.status == 42


# ---- Bad input ---------------------------------------------------------------


def test_results_name_no_place_of_the_machine():
    # A workdir whose letters are in every word.
    place = runs.Place("e", "/data/of/mine")
    recipe = definitions.claims()["SI-T1"].recipe("cpu")
    told = [
        place.told(command)
        for unit in runs.plan(recipe, place, 1)
        for command in unit.commands
    ]
    assert all("--data_dir=DATA" in line for line in told)
    assert all("--workdir=reproduction/runs/cifar-" in line for line in told)
    assert "--encoder=resnet10" in told[0]
    assert "/data/of/mine" not in " ".join(told)


def test_a_dry_run_prints_the_commands(capsys, tmp_path):
    options = {"claim": "SI-T1", "dry_run": True, "seeds": 1}
    reproduce.run(fields.replace(Reproduce(), **options))
    lines = capsys.readouterr().out.splitlines()
    assert sum(" pretrain " in line for line in lines) == 4
    assert sum(" evaluate " in line for line in lines) == 4
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
