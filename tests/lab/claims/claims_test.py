"""Claims: their data, what is run for them, and the verdicts."""

import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import small
from scipy import stats

from tf_contrastive import __main__, errors, flags
from tf_contrastive.commands import reproduce
from tf_contrastive.commands.reproduce import Reproduce
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.lab.claims import (
    definitions,
    measures,
    runs,
    verdicts,
)

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
    "judged": "SupCon is above SINCERE.",
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


def _fake_final(unit):
    loss = unit.settings["free_embeddings"]["loss"]
    return {"supcon": 3.0, "sincere": 1.0}[loss] + 0.01 * unit.seed


def _patch(monkeypatch, numbers, name="free_embeddings", number="final"):
    """Replaces the numbers of a measure by those of a function of a unit."""

    def measure(unit, _):
        return measures.Measured({number}, lambda: {number: numbers(unit)})

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


# ---- Definitions -------------------------------------------------------------


def test_the_list_shows_landed_results_and_reasons(capsys, tmp_path):
    docs = pathlib.Path(__file__).parents[3] / "docs"
    for folder, verdict in ((docs, "holds (cpu)"), (tmp_path, " - ")):
        options = {"list": True, "report_dir": str(folder)}
        assert reproduce.run(fields.replace(Reproduce(), **options)) == 0
        lines = capsys.readouterr().out.splitlines()
        (line,) = [line for line in lines if line.startswith("SI-T4 ")]
        assert verdict in line
    known = definitions.claims()
    for name, item in definitions.items().items():
        assert definitions.claim_of(name, known) or item.note, name


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


def test_every_claim_has_valid_commands_and_values_that_are_written():
    known = definitions.claims()
    assert {"SI-T1", "SI-T4", "SC-T1"} <= set(known)
    kinds = {"pretrain": Pretrain, "evaluate": Evaluate}
    for claim in known.values():
        for scale, recipe in claim.recipes.items():
            if scale == "cpu":
                assert recipe.seeds >= verdicts.MIN_SEEDS
                assert recipe.judged, claim.name
            units = list(runs.plan(recipe, runs.Folders("w", "d"), 2))
            assert len(units) == 2 * len(list(recipe.units()))
            for name, *words in [c for u in units for c in u.commands]:
                flags.parse(kinds[name], words).validate()
            tried = [
                unit
                for unit, _ in runs.candidates(recipe, runs.Folders("w", "d"))
            ]
            for unit in [*tried, *units[: len(units) // 2]]:
                assert measures.check(recipe, unit)
            for table in recipe.printed:
                for arm in table.rows:
                    assert any(
                        recipe.paper_value(case, arm, table.value)
                        for case in recipe.cases
                    )


def test_recipes_of_the_package_are_found_from_any_folder(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    recipe = definitions.claims()["SC-NP"].recipe("paper")
    runs._check(recipe, runs.Folders("w"))
    with pytest.raises(errors.UserError, match="elsewhere/npairs"):
        runs._check(recipe, runs.Folders("w", configs_dir="elsewhere"))


def _planned(values, relations=(), **settings):
    recipe = definitions.Recipe(
        {"a": settings}, {"": {}}, values, tuple(relations), ()
    )
    return recipe, *runs.plan(recipe, runs.Folders("w"), 1)


def test_values_that_no_protocol_writes_are_refused_before_the_run():
    settings = {
        "pretrain": [],
        "evaluate": ["--protocols=knn,transfer", "--features=h,z"],
        "evaluate:head": ["--protocols=robustness", "--nountrained"],
    }
    written = {
        "1NN": [["evaluation", "untrained/knn:z k=1/top1"]],
        "pets": [["evaluation", "transfer:pets linear/score"]],
        "mild": [["evaluation:head", "robustness/accuracy/1"]],
        "loss": [["training", "collapsed"]],
    }
    recipe, unit = _planned(written, **settings)
    assert measures.check(recipe, unit) == set(written)
    assert [words[0] for words in unit.commands] == [
        "pretrain",
        "evaluate",
        "evaluate",
    ]
    assert len({x.folder for x in unit.evaluations.values()}) == 2
    for measure, number in (
        ("evaluation", "transfer:oxford_iiit_pet linear/top1"),
        ("evaluation", "knn:k=3/top1"),
        ("evaluation", "robustness/mce"),
        ("evaluation:head", "untrained/robustness/mce"),
        ("training", "ln_other"),
    ):
        recipe, unit = _planned({"x": [[measure, number]]}, **settings)
        with pytest.raises(errors.UserError, match="x of a reads"):
            measures.check(recipe, unit)
    relation = definitions.Relation(
        "r", (definitions.Term("initial", ("a",), ""),), (), 0.0, True, ("",)
    )
    values = {"initial": [["free_embeddings", "initial"]]}
    recipe, unit = _planned(values, [relation], **settings)
    with pytest.raises(errors.UserError, match="no such measure"):
        measures.check(recipe, unit)


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
        ([3, 4, 3, 5, 4], 5.5, True, verdicts.SMALLER),
        ([3, 4, 3, 5, 4], 4.0, True, verdicts.SMALLER),
        ([3, 4, -3, 5, 4], 4.0, True, verdicts.NONE_FOUND),
        ([-3, -4, -3, -5, -4], 1.0, True, "contradicted"),
        # Ties: a difference of at most 5.5, of at least -1.
        ([3, 4, 3, 5, 4], 5.5, False, "holds"),
        ([3, 4, 3, 5, 4], 2.0, False, "contradicted"),
        ([3, 4, 3, 5, 4], 4.0, False, "undecided"),
        ([0.5, -0.4, 0.1, 0.2, -0.3], -1.0, True, "holds"),
        ([3, 4, 3, 5], 2.0, True, verdicts.NONE_FOUND),  # 1/16 at best.
    ],
)
def test_a_relation_is_tested_against_zero_and_its_bound(
    left, bound, at_least, verdict
):
    judged = verdicts.judge(left, [0.0] * len(left), bound, at_least)
    assert judged["verdict"] == verdict


def _judged(*lefts, bound=2.0, gates=(), **relation):
    """Rows of relations on made-up units, one arm per relation."""
    arms = [str(number) for number in range(len(lefts))]
    relations = [
        definitions.Relation(
            arm, (definitions.Term("x", (arm,), ""),), (), bound, True, ("",)
        )
        for arm in arms
    ]
    units = [
        {"case": "", "arm": arm, "seed": seed, "values": {"x": value}}
        for arm, left in zip(arms, lefts, strict=True)
        for seed, value in enumerate(left)
    ]
    for unit, gate in zip(units, gates, strict=False):
        unit["gate"] = gate
    return verdicts.judge_all(relations, units, len(lefts[0]))


def test_p_values_are_corrected_for_the_number_of_relations():
    above = [3, 4, 3, 5, 4]
    # Significant together: only the observed signs reach both sums.
    assert verdicts.corrected([above, above]) == [1 / 32, 1 / 32]
    # Other signs make the second as large as the first is.
    mixed = [3, 4, -3, 5, 4]
    assert verdicts.corrected([above, mixed]) == [2 / 32, 3 / 32]
    # At least the uncorrected ones, at most Bonferroni's.
    random = np.random.RandomState(0).normal(0.5, 1.0, (4, 8))
    alone = np.array([verdicts.sign_flip(row) for row in random])
    both = np.array(verdicts.corrected(random))
    assert (alone <= both).all()
    assert (both <= np.minimum(1, 4 * alone) + 1e-9).all()
    # Of nothing, a relation of eight is significant as often as the level.
    draws = np.random.RandomState(1).normal(size=(300, 8, 8))
    false = [min(verdicts.corrected(draw)) <= 0.05 for draw in draws]
    assert np.mean(false) < 0.08


def test_the_verdict_on_a_claim():
    above, smaller = [3, 4, 3, 5, 4], [1, 3, 1, 1, 3]
    mixed, below = [1, -1, 1, 2, -2], [-1, -2, -1, -1, -3]

    def verdict(*lefts, **options):
        return verdicts.combine(_judged(*lefts, **options))

    assert verdict(above, above) == "holds"
    assert verdict(above, smaller) == verdicts.SMALLER
    assert verdict(above, mixed) == verdicts.NONE_FOUND
    assert verdict(below, below) == "contradicted"
    # Of one among two relations, five seeds show it at 2/32 only.
    assert verdict(above, below) == "undecided"
    assert verdict([*above, 4], [*below, -2]) == "contradicted"
    assert verdict(above, [3, 4, 3, 5, None]) == "incomplete"
    assert verdicts.combine([]) == "no relation"


def test_sums_and_spreads():
    """The spread shrinks by 2.5, and a gains 2.5 more than b."""
    values = {
        "short": {"a": 1.0, "b": 4.0, "c": 2.0},
        "long": {"a": 5.0, "b": 5.5, "c": 5.2},
    }
    units = [
        {"case": case, "arm": arm, "seed": seed, "values": {"x": x}}
        for case, arms in values.items()
        for arm, x in arms.items()
        for seed in range(5)
    ]
    relations = [
        definitions._relation(
            {"left": left, "right": right, "at_least": 1, "cases": ["long"]},
            values,
            "abc",
            ["x"],
        )
        for left, right in (
            ("spread of x on short", "spread of x on long"),
            (["x of a", "x of b on short"], ["x of a on short", "x of b"]),
        )
    ]
    rows = verdicts.judge_all(relations, units, 5)
    assert [row["mean"] for row in rows] == pytest.approx([2.5, 2.5])
    # One arm less leaves the spread incomplete.
    few = [u for u in units if (u["arm"], u["case"]) != ("c", "long")]
    rows = verdicts.judge_all(relations, few, 5)
    assert [row["verdict"] for row in rows] == ["incomplete", "holds"]


def test_an_arm_that_did_not_train_makes_a_claim_invalid():
    # SI-T1 on CIFAR-2: 5.3, where equal embeddings have ln(127).
    gates = [{"final": 5.3, "collapsed": math.log(127)}]
    rows = _judged([3, 4, 3, 5, 4], gates=gates)
    assert verdicts.combine(rows) == "invalid"
    assert rows[0]["mean"] == 3.8
    gates = [{"final": 4.8, "collapsed": math.log(127)}]
    assert verdicts.combine(_judged([3, 4, 3, 5, 4], gates=gates)) == "holds"
    gates = [{"final": math.nan, "collapsed": 4.8}]
    assert verdicts.combine(_judged([3, 4, 3, 5, 4], gates=gates)) == "invalid"


@pytest.mark.parametrize(
    ("options", "classes", "positives", "expected"),
    [
        ({"loss": "supcon"}, 2, 63.0, math.log(127)),
        ({"loss": "sincere", "views": 1}, 2, 31.0, math.log(33)),
        ({"loss": "ntxent"}, None, math.nan, math.log(127)),
        ({"loss": "ntxent", "negatives": "other_view"}, 2, 63.0, math.log(64)),
        ({"loss": "supcon", "positives_cap": 1}, 2, 63.0, math.log(65)),
        ({"loss": "moco", "queue_size": 100}, 2, 1.0, math.log(101)),
        ({"loss": "cross_entropy"}, 7, math.nan, math.log(7)),
        ({"loss": "margin", "mining": "semi_hard"}, 7, 9.0, None),
    ],
)
def test_the_loss_of_a_collapsed_network(options, classes, positives, expected):
    config = fields.replace(Pretrain(), batch_size=64, **options)
    found = measures.collapsed_loss(config, classes, positives)
    assert found == (expected and pytest.approx(expected, abs=1e-4))


def test_landed_results_are_judged_by_their_recipes():
    folder = str(pathlib.Path(__file__).parents[3] / "docs/results")
    known = definitions.claims()
    saved = definitions.landed(folder)
    assert saved["SI-T4"]["verdict"] == "holds"
    for name, result in saved.items():
        recipe = known[name].recipe(result["scale"])
        fingerprint = runs.recipe_fingerprint(recipe, result["scale"])
        assert result["recipe"] == fingerprint, name
        again = runs.read(known[name], folder)
        assert again["verdict"] == result["verdict"], name


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


def test_policies_are_timed(monkeypatch):
    def in_turns(calls, repeats, *, seconds, warm_up):
        for call in calls.values():
            assert call().shape == (8, 16, 16, 3)
        assert (repeats, warm_up) == (3, 1)
        return {"crop": [1, 3, 2], "simclr": [9, 5, 7]}

    monkeypatch.setattr(measures.measure, "in_turns", in_turns)
    options = {"policies": ["crop", "simclr"], "image_size": 16}
    options |= {"images": 8, "repeats": 3}
    unit = measures.Unit("", "host", 0, {"policy_speed": options})
    written, numbers = measures.MEASURES["policy_speed"](unit, "")
    assert written == {"crop", "simclr"}
    assert numbers() == {"crop": 2000 / 8, "simclr": 7000 / 8}


@pytest.mark.slow
def test_a_vae_is_scored_by_the_protocols_of_its_claim(tmp_path):
    """On digits: trained once, above chance, and gated."""
    recipe = definitions.claims()["IP-F7"].recipe("cpu")
    arms = {"VAE": {"vae": {}}, "NT-Xent 0.2": recipe.arms["NT-Xent 0.2"]}
    cases = {"2": {"pretrain": ["--dataset=randbit:bits=2,of=digits"]}}
    recipe = dataclasses.replace(recipe, arms=arms, cases=cases, relations=())
    recipe.shared["pretrain"] += [
        "--split=train",
        "--image_size=8",
        "--batch_size=64",
        "--epochs=20",
    ]
    folders = runs.Folders(str(tmp_path))
    vae, other = runs.plan(recipe, folders, 1)
    assert not vae.commands and len(other.commands) == 2
    assert vae.workdir != other.workdir
    assert measures.check(recipe, vae) == {"top-1"}
    values = measures.values(recipe, vae)
    assert values["top-1"] > 0.3
    (file,) = tmp_path.rglob("vae.json")
    written = file.stat().st_mtime_ns
    assert measures.values(recipe, vae) == values
    assert file.stat().st_mtime_ns == written
    gate = measures.gate(vae)
    assert gate["final"] < gate["collapsed"]


# ---- Running -----------------------------------------------------------------


def test_a_claim_resumes_and_is_reported(run, tmp_path, monkeypatch, capsys):
    claims = {"A": _claim([_ABOVE], **_TEXTS)}
    calls = []

    def interrupted(unit):
        calls.append((unit.settings["free_embeddings"]["loss"], unit.seed))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return _fake_final(unit)

    _patch(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(claims, claim="A")
    path = tmp_path / "out/A/result.json"
    result = json.loads(path.read_text())
    assert result["verdict"] == "incomplete"
    assert len(result["units"]) == 3
    assert run(claims, claim="A") == 0
    assert "A: holds" in capsys.readouterr().out
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
    assert "holds (cpu)" in capsys.readouterr().out

    docs = tmp_path / "docs"
    assert run(claims, report=True, report_dir=str(docs)) == 0
    text = (docs / "RESULTS.md").read_text()
    assert "**holds**" in text
    assert "4.69" in text  # The paper's SupCon.
    assert _TEXTS["note"] in text
    assert f"Judged here: {_TEXTS['judged']}" in text
    assert f"Also tried: {_TEXTS['tried'][0]}" in text
    assert "| SI-T1 |" in text.split("## Not run here")[1]
    assert "| SI-T4 |" not in text.split("## Not run here")[1]
    assert (docs / "results/A/result.png").stat().st_size > 5000
    # Without the runs: from the results in the report's folder.
    run(claims, report=True, report_dir=str(docs), workdir=str(tmp_path / "no"))
    assert (docs / "RESULTS.md").read_text() == text


@pytest.mark.parametrize(
    ("relation", "status", "verdict"),
    [
        (_BELOW, 1, "contradicted"),
        (_EQUAL, 0, verdicts.NONE_FOUND),
        (_EQUAL | {"not_judged": "it is equal"}, 0, "no relation"),
    ],
)
def test_verdicts_and_exit_status(
    run, monkeypatch, capsys, relation, status, verdict
):
    _patch(monkeypatch, _fake_final)
    assert run({"A": _claim([relation])}, claim="A") == status
    assert f"A: {verdict}" in capsys.readouterr().out


def test_arms_are_tuned_on_a_cut_of_train(run, tmp_path, monkeypatch):
    """Each arm's best rate is used for all seeds; collapsed ones lose.

    In c all have collapsed, and the best of them is used.
    """
    calls = []

    def call(words, **_):
        calls.append(words[3:])
        return subprocess.CompletedProcess(words, 0)

    def top1(unit):
        best = {"a": 0.3, "b": 1.0, "c": 0.3}[unit.arm]
        return -abs(_rate(unit.pretrain) - best) + 0.01 * unit.seed

    def gate(unit):
        # The best of b did not train.
        failed = unit.arm == "c" or _rate(unit.pretrain) == 1.0
        final = 9.0 if failed else 1.0
        return {"final": final, "collapsed": 5.0}

    monkeypatch.setattr(subprocess, "run", call)
    _patch(monkeypatch, top1, "evaluation", "knn:k=1/top1")
    monkeypatch.setattr(measures, "gate", gate)
    rates = [[f"--learning_rate={rate}"] for rate in (0.1, 0.3, 1.0)]
    recipe = {
        "seeds": 2,
        "shared": {"pretrain": ["--split=train"], "evaluate": []},
        "arms": {"a": {}, "b": {}, "c": {}},
        "values": {"1NN": ["evaluation", "knn:k=1/top1"]},
        "select": {
            "flags": {"a": rates, "b": rates, "c": rates},
            "value": "1NN",
            "pretrain": ["--split=train[:90%]"],
            "evaluate": ["--test_split=train[90%:]"],
        },
    }
    claims = {"A": {"claim": "A", "items": ["SI-T4"], "cpu": recipe}}
    assert run(claims, claim="A") == 0
    path = tmp_path / "out/A/result.json"
    result = json.loads(path.read_text())
    assert result["chosen"] == {
        "/a": ["--learning_rate=0.3"],
        "/b": ["--learning_rate=0.3"],
        "/c": ["--learning_rate=0.3"],
    }
    tuning, judged = calls[:18], calls[18:]
    assert len(judged) == 12
    for words in tuning:
        cut = "--split=train[:90%]", "--test_split=train[90%:]"
        assert cut[words[0] == "evaluate"] in words
    for words in [words for words in judged if words[0] == "pretrain"]:
        assert "--split=train[:90%]" not in words
        assert _rate(words) == 0.3
        assert f"--seed={runs.SELECTION_SEED}" not in words
    # What was tried is not tried again.
    assert run(claims, claim="A", seeds=3) == 0
    assert len(calls) == 30 + 6


def _rate(words):
    rates = [w for w in words if w.startswith("--learning_rate=")]
    return float(rates[-1].partition("=")[2])


_DIGITS = [
    "--dataset=digits",
    "--image_size=8",
    "--encoder=resnet10",
    "--width=0.125",
    "--batch_size=128",
    "--epochs=1",
    "--views=1",
    "--augmentation=none",
    # Longer than an epoch: the last epoch is in the run's report only.
    "--log_every_steps=100",
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


def test_a_dry_run_prints_the_commands(capsys):
    options = {"claim": "SI-T1", "dry_run": True, "seeds": 1}
    reproduce.run(fields.replace(Reproduce(), **options))
    lines = capsys.readouterr().out.splitlines()
    assert sum(" pretrain " in line for line in lines) == 6
    assert sum(" evaluate " in line for line in lines) == 6


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
