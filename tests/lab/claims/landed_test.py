"""The results in docs, and what is said of them."""

import json
import shutil
from pathlib import Path

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
