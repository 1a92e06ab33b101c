"""The list of claims: of what, how, and how it came out. No TensorFlow."""

from collections.abc import Callable, Mapping
from typing import Any

from tf_contrastive import tables
from tf_contrastive.reproduction import claims

# Item.replicable -> the status of what has no recipe.
_NO_RECIPE = {
    "cpu": "to come",
    "paper": "no recipe: needs its data",
    "none": "nothing to run",
}


def listing(
    known: Mapping[str, claims.Claim],
    result_of: Callable[[str], dict[str, Any] | None],
) -> str:
    """Every table and figure, what can be run of it, and how it came out.

    Args:
      known: the claims.
      result_of: a claim's name -> its result, if there is one.
    """
    rows = [("id", "paper", "recipe", "minutes", "status", "claim")]
    for name, item in claims.items().items():
        claim = claims.of_item(name, known)
        status = _status(item, claim, claim and result_of(claim.name))
        rows.append((name, item.where, *_scales(claim), status, item.claim))
    papers = [f"{prefix}: {title}" for prefix, title in claims.papers().items()]
    texts = (0, 1, 2, 4, 5)
    return "\n".join([*papers, "", tables.laid_out(rows, texts)])


def _scales(claim: claims.Claim | None) -> tuple[str, str]:
    if claim is None:
        return "-", "-"
    cpu = claim.recipes.get("cpu")
    minutes = "-"
    if cpu and cpu.minutes:
        minutes = f"{cpu.minutes * cpu.seeds:g}"
    return ", ".join(claim.recipes), minutes


def _status(
    item: claims.Item,
    claim: claims.Claim | None,
    result: dict[str, Any] | None,
) -> str:
    if claim is None:
        return _NO_RECIPE[item.replicable]
    if result is None:
        return "not run"
    return f"{result['verdict']} ({result['scale']})"
