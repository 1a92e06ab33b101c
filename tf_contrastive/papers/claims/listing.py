"""The list of tables and figures and the state of their claims.

It imports no TensorFlow, so that `reproduce --list` answers at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tf_contrastive import terminal
from tf_contrastive.papers.claims import definitions

# Item.replicable -> the status of an item without a recipe.
_NO_RECIPE = {
    "cpu": "to come",
    "paper": "no recipe: needs its data",
    "none": "nothing to run",
}


def listing(
    known: Mapping[str, definitions.Claim],
    result_of: Callable[[str], dict[str, Any] | None] = lambda name: None,
) -> str:
    """Formats every table and figure with its recipes and its status.

    Args:
      known: the claims.
      result_of: a claim's name -> its result, if there is one.
    """
    rows = [("id", "paper", "recipe", "minutes", "status", "claim")]
    for name, item in definitions.items().items():
        scales, minutes, status = "-", "-", _NO_RECIPE[item.replicable]
        if claim := definitions.claim_of(name, known):
            scales, status = ", ".join(claim.recipes), "not run"
            cpu = claim.recipes.get("cpu")
            if cpu and cpu.minutes:
                minutes = f"{cpu.minutes * cpu.seeds:g}"
            if result := result_of(claim.name):
                status = f"{result['verdict']} ({result['scale']})"
        rows.append((name, item.where, scales, minutes, status, item.claim))
    papers = [f"{k}: {title}" for k, title in definitions.papers().items()]
    table = terminal.format_table(rows, texts=(0, 1, 2, 4, 5))
    return "\n".join([*papers, "", table])
