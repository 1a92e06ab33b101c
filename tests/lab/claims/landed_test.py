"""The results in docs, and what is said of them."""

import json
import shutil
from pathlib import Path

import pytest

from lab.claims import (
    definitions,
    results_document,
    results_page,
    runs,
)

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_KNOWN = definitions.claims()
_LANDED = definitions.landed(str(_DOCS / "results"))


def test_results_are_of_their_recipes():
    assert len(_LANDED) == 22
    for name, result in _LANDED.items():
        recipe = _KNOWN[name].recipe(result["scale"])
        fingerprint = runs.recipe_fingerprint(recipe, result["scale"])
        assert result["recipe"] == fingerprint, name


def test_the_pages_are_those_that_the_results_give(tmp_path, monkeypatch):
    """And the results have the outcomes that the recipes give."""
    monkeypatch.setattr(results_page, "plot", lambda *_: None)
    shutil.copytree(_DOCS / "results", tmp_path / "results")
    for page in tmp_path.glob("**/*.md"):
        page.unlink()
    results_document.write(_KNOWN, str(tmp_path / "empty"), str(tmp_path))
    for kind in ("*.md", "*/result.json"):
        paths = [*(_DOCS / "results").glob(kind), _DOCS / "RESULTS.md"]
        assert len(paths) > len(_LANDED)
        for path in paths:
            written = tmp_path / path.relative_to(_DOCS)
            assert written.read_text() == path.read_text(), path


# Verdicts by a reading of the papers beside the numbers of each seed.
_SHOWN = {"SC-T1", "SC-NP", "SR-F6", "IP-F7", "IP-S5", "IP-FB1"}
_OTHERS = {
    **dict.fromkeys(["SI-T5", "SC-T3", "IP-T3", "IP-T4"], "opposite seen"),
    "IP-F6": "not shown",
}
_PARTS = {
    "SI-T1": {
        "on MNIST": "shown",
        "on CIFAR-2": "opposite seen",
        "on CIFAR-10": "not shown",
        "on CIFAR-100": "not tested",
        "on ImageNet-100": "not tested",
    },
    "SI-T4": {
        "SINCERE near 0": "shown",
        "SupCon above it": "shown",
        "higher with fewer classes": "shown",
        "100 classes": "not tested",
    },
    "SC-SPEED": {
        "than RandAugment": "not shown",
        "than SimAugment": "shown",
        "than Stacked RandAugment": "shown",
    },
    "SR-T1": {
        "helps SimCLR": "opposite seen",
        "does not help supervised learning": "shown",
    },
    "SR-T2": {
        "rotation": "not shown",
        "noise": "not shown",
        "Sobel filtering": "not shown",
        "colour or gray": "shown",
    },
    "SR-T4": {
        "a suitable temperature": "shown",
        "normalization": "not shown",
        "the contrastive task is solved better without normalization": (
            "opposite seen"
        ),
    },
    "SR-F5": {
        "this pair is better than either alone": "shown",
        "other operations and pairs": "not tested",
    },
    "SR-T6": {
        "with 1 %": "shown",
        "with 10 %": "shown",
        "most at 1 %": "not shown",
    },
    "SR-F8": {
        "nonlinear better than linear": "not shown",
        "better than none": "not shown",
        "h better than z": "shown",
    },
    "IP-D1": {
        "Decoupled NT-Xent": "shown",
        "SWD hypersphere": "shown",
        "SWD hypercube": "not shown",
        "SWD normal": "opposite seen",
        "the spread shrinks with epochs": "not shown",
    },
    "IP-FC1": {
        "LogSumExp": "shown",
        "sliced Wasserstein distance": "not tested",
    },
}


@pytest.mark.parametrize("name", _LANDED)
def test_a_verdict_says_no_more_than_was_shown(name):
    result = _LANDED[name]
    if name in _PARTS:
        assert result["verdict"] == "partly shown"
        assert result["parts"] == _PARTS[name]
        return
    verdict = "shown" if name in _SHOWN else _OTHERS[name]
    assert result["verdict"] == verdict
    parts = {*result["parts"].values()}
    assert verdict in parts
    weaker = {"not shown"} if verdict == "opposite seen" else set()
    assert parts <= {verdict, "not tested"} | weaker


# Differences of each seed that contradict the papers, and how RESULTS.md has
# their mean: of a part, of a relation that supports none, of four seeds.
_AGAINST = {
    ("SI-T1", "margin of SINCERE - margin of SupCon", "CIFAR-2"): (
        [-0.3086, -0.1491, -0.1564, -0.3056, -0.1797],
        "on CIFAR-2: -0.220 in 5 of 5 seeds",
    ),
    (
        "SR-T4",
        "contrastive accuracy of 0.05 - contrastive accuracy of 0.1",
        "",
    ): (
        [-0.0312, -0.0105, -0.0275, -0.0267, -0.0210],
        "also contrastive accuracy of 0.05 - contrastive accuracy of 0.1: -0.0",
    ),
    ("SR-F8", "h of mlp - h of linear", ""): (
        [-0.0131, -0.0033, -0.0019, -0.0081, 0.0023],
        "nonlinear better than linear: -0.005 in 4 of 5 seeds",
    ),
}


@pytest.mark.parametrize("key", _AGAINST)
def test_what_contradicts_a_paper_is_in_the_summary(key):
    name, compared, case = key
    differences, text = _AGAINST[key]
    (row,) = [
        row
        for row in _LANDED[name]["relations"]
        if row["relation"].startswith(f"{compared} ") and row["case"] == case
    ]
    assert row["differences"] == pytest.approx(differences, abs=6e-5)
    # Of SR-F8, four of five seeds are against the paper.
    one_sign = len({x > 0 for x in differences}) == 1
    outcome = "contradicted" if one_sign else "no difference found"
    assert row["verdict"] == outcome
    lines = (_DOCS / "RESULTS.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| [{name}]")]
    assert text in line


def test_networks_that_did_not_train_are_named(tmp_path):
    """As SupCon on CIFAR-2 in an earlier run of SI-T4."""
    path = tmp_path / "out/SI-T4/result.json"
    path.parent.mkdir(parents=True)
    result = json.loads(json.dumps(_LANDED["SI-T4"]))
    for unit in result["units"]:
        if (unit["case"], unit["arm"]) == ("CIFAR-2", "SupCon"):
            unit["gate"] = {"final": 5.23 + 0.03 * unit["seed"]}
            unit["gate"]["collapsed"] = 4.844
    path.write_text(json.dumps(result))
    claims = {"SI-T4": _KNOWN["SI-T4"]}
    results_document.write(claims, str(tmp_path / "out"), str(tmp_path))
    lines = (tmp_path / "RESULTS.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| [SI-T4]")]
    assert line.split(" | ")[2:4] == [
        "**invalid**",
        "CIFAR-2, SupCon not trained: final losses are 5.23 to 5.35, that of"
        " equal embeddings is 4.84",
    ]
    page = (tmp_path / "results/SI-T4.md").read_text()
    assert "| SINCERE near 0 | shown |" in page
    assert "| SupCon above it | invalid | invalid; 1 of 2" in page
    # Also a relation that decides nothing.
    also = "final of SupCon - ln(positives) of SupCon >= 0"
    assert f"| CIFAR-2 | {also} | - | - | - | invalid |" in page
    assert f"| CIFAR-10 | {also} | +0.0226 |" in page


def test_relations_that_were_added_after_a_run_are_named():
    def added(name):
        text = (_DOCS / "results" / f"{name}.md").read_text()
        return text.partition("Relations added after the run: ")[2][:40]

    assert added("IP-T3").startswith("top-1 of SimCLR on 2 - top-1 of SimCLR")
    assert added("SR-T1").startswith("top-1 of SimCLR on 1 - top-1 of SimCLR")
    assert not added("SC-NP")
    # Both of its sides were written before.
    assert not added("SI-T5")
