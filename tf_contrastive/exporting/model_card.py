"""The README of an export: what it takes, its files, its recipe."""

from pathlib import Path
from typing import Any

from tf_contrastive import checkpoints, flags

FILE = "README.md"
_TEMPLATE = Path(__file__).with_name("card.md")


def text(details: dict[str, Any], run: checkpoints.Run | None) -> str:
    """Returns the card in Markdown; a model from Python has no run."""
    heading, *others = format_rows(details)
    lines = [heading, ["---"] * len(heading), *others]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    for one in details["formats"]:
        if "code" in one:
            table += f"\n\n```python\n{one['code']}\n```"
    sections = {
        "signatures": ", ".join(f"`{x}`" for x in details["signatures"]),
        "files": table,
        "recipe": _recipe(run),
    }
    return _TEMPLATE.read_text("utf-8").format(**details | sections)


def format_rows(details: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the table of an export's other formats, with its heading.

    The last columns compare embeddings with the SavedModel's on photographs;
    the difference is a fraction of the largest value.
    """
    heading = ("file", "read by", "bytes", "largest difference", "least cosine")
    rows: list[tuple[str, ...]] = [heading]
    for one in details["formats"]:
        compared = ["", ""]
        if "largest_difference" in one:
            compared[0] = f"{one['largest_difference']:.1e}"
            compared[1] = f"{one['least_cosine']:.6f}"
        rows.append(
            (one["file"], one["reader"], f"{one['bytes']:,}", *compared)
        )
    return rows


def _recipe(run: checkpoints.Run | None) -> str:
    if run is None:
        return "Exported from Python: describe the training here."
    data = run.metadata
    return (
        f"{data['dataset']}, split {data['split']}, {data['num_examples']:,}"
        f" images, {data['num_classes'] or 'no'} classes; step {run.step:,}."
        " `python -m tf_contrastive pretrain --flagfile=THIS --workdir=NEW`"
        f" repeats the run:\n\n```\n{flags.write(run.config).strip()}\n```"
    )
