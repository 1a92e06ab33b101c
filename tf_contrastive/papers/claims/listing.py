"""The list of claims: of what, how, and how it came out. No TensorFlow."""

from collections.abc import Callable, Mapping
from typing import Any

from tf_contrastive import terminal
from tf_contrastive.papers.claims import definitions

# Item.replicable -> the status of what has no recipe.
_NO_RECIPE = {
    "cpu": "to come",
    "paper": "no recipe: needs its data",
    "none": "nothing to run",
}


def listing(
    known: Mapping[str, definitions.Claim],
    result_of: Callable[[str], dict[str, Any] | None],
) -> str:
    """Every table and figure, what can be run of it, and how it came out.

    Args:
      known: the claims.
      result_of: a claim's name -> its result, if there is one.
    """
    rows = [("id", "paper", "recipe", "minutes", "status", "claim")]
    for name, item in definitions.items().items():
        claim = definitions.of_item(name, known)
        status = _status(item, claim, claim and result_of(claim.name))
        rows.append((name, item.where, *_scales(claim), status, item.claim))
    papers = [
        f"{prefix}: {title}" for prefix, title in definitions.papers().items()
    ]
    texts = (0, 1, 2, 4, 5)
    return "\n".join([*papers, "", terminal.format_table(rows, texts)])


def _scales(claim: definitions.Claim | None) -> tuple[str, str]:
    if claim is None:
        return "-", "-"
    cpu = claim.recipes.get("cpu")
    minutes = "-"
    if cpu and cpu.minutes:
        minutes = f"{cpu.minutes * cpu.seeds:g}"
    return ", ".join(claim.recipes), minutes


def _status(
    item: definitions.Item,
    claim: definitions.Claim | None,
    result: dict[str, Any] | None,
) -> str:
    if claim is None:
        return _NO_RECIPE[item.replicable]
    if result is None:
        return "not run"
    return f"{result['verdict']} ({result['scale']})"
