"""The results in docs, and what is said of them."""

import shutil

from processes import ROOT

from lab.claims import definitions, results_document, results_page, runs

_DOCS = ROOT / "docs"
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
