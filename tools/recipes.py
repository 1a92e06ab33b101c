"""Writes docs/recipes.md: where recipes differ from their authors'.

Use: python tools/recipes.py

The authors' values are in configs/authors.json, by the names of our options.
A value there is [theirs, source], or [theirs, source, ours, reason] where a
recipe has another one; theirs is null where neither paper nor code states it. A
recipe has the values of its "base", unless it has its own; null: it has not
that option.
"""

import json
import pathlib
import sys
import textwrap
from typing import Any

from tf_contrastive import flags
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields, pretrain
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor.smoke import substitute

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
DATA = CONFIGS / "authors.json"
DOCUMENT = ROOT / "docs" / "recipes.md"
# What a recipe may set without a statement of its authors: data, and how and
# where it is computed.
_FREE = {
    *("dataset", "split", "test_split", "validation_fraction", "data_dir"),
    *("cache", "shuffle_buffer", "wire_dtype", "precision", "strategy"),
    *("grad_cache_chunks", "checkpoint_every_steps", "keep_checkpoints"),
    *("init_from", "workdir"),
}
_INTRODUCTION = """\
# Recipes

Options of the flagfiles of `configs/` that differ from their authors'
settings, or that the authors do not state. `configs/authors.json` has all
others, each with its value and source; a test compares them. The header of
each flagfile states under `Differs` how its run differs from the authors' code
beyond options. `python tools/recipes.py` writes this page.

An epoch has whole batches only, floor(n / B) steps. SimCLR's code trains n *
epochs // B + 1 steps in all, SupCon's one less, and SINCERE's ceil(n / B) in
each epoch: up to 1 % more.
"""

Values = dict[str, Any]


def resolved(name: str) -> Pretrain:
    """Returns the resolved options of a `pretrain` recipe."""
    path = CONFIGS / f"{name}.flags"
    run = flags.parse(Pretrain, [f"--flagfile={path}", "--workdir=w"])
    run.validate()
    name = run.data.dataset
    _, side = substitute(name)
    return pretrain.resolve(run, dataset=name, image_shape=(side, side, 3))


def ours(name: str) -> Values:
    """Returns the values of a recipe's options and of its components."""
    if name in data()["evaluations"]:
        path = CONFIGS / f"{name}.flags"
        parsed = flags.parse(Evaluate, [f"--flagfile={path}", "--workdir=w"])
        return fields.values(parsed) | _of_optimizer(parsed.linear)
    run = resolved(name)
    found = fields.values(run)
    for component in (
        run.views.policy,
        run.loss,
        run.optimizer,
        run.schedule.decay,
    ):
        found |= component.arguments()
    stage = run.linear
    linear = stage.schedule.decay.arguments() | stage.hyperparameters()
    linear = {f"linear_{option}": x for option, x in linear.items()}
    return found | _of_optimizer(stage) | linear


def _of_optimizer(stage: LinearStage) -> Values:
    arguments = stage.optimizer.arguments().items()
    return {f"linear_{option}": value for option, value in arguments}


def data() -> dict[str, Any]:
    """Returns the content of configs/authors.json."""
    return json.loads(DATA.read_text("utf-8"))


def authors(name: str, content: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the authors' entry of each option of a recipe."""
    return {k: e for k, e in _entries(name, content).items() if e is not None}


def _entries(name: str, content: dict[str, Any]) -> Values:
    """Returns a recipe's entries, with those of its base."""
    recipe = {**content["recipes"], **content["evaluations"]}[name]
    base = _entries(recipe["base"], content) if "base" in recipe else {}
    return {**base, **recipe["values"]}


def differences(name: str, content: dict[str, Any]) -> list[str]:
    """Returns how a recipe differs from the authors' code beyond options."""
    recipe = {**content["recipes"], **content["evaluations"]}[name]
    if "differences" not in recipe and "base" in recipe:
        return differences(recipe["base"], content)
    keys = recipe.get("differences", [])
    return [text for key in keys for text in content["differences"][key]]


def differs_field(name: str, content: dict[str, Any]) -> str:
    """Returns the header's field `Differs` of a recipe, as comment lines."""
    text = "; ".join(differences(name, content)) + "."
    return textwrap.fill(
        text,
        80,
        initial_indent="# Differs:  ",
        subsequent_indent="#           ",
        break_on_hyphens=False,
    )


def unexplained(name: str, content: dict[str, Any]) -> list[str]:
    """Returns the options of a flagfile that are not those of the data."""
    entries, found = authors(name, content), ours(name)
    wrong = [
        f"{name}: {option} is {found.get(option)}, stated: {entry}"
        for option, entry in entries.items()
        if _text(found.get(option)) != _text(entry[2 if entry[2:] else 0])
    ]
    if name in content["recipes"]:
        stated = {*_entries(name, content), *_FREE}
        given = {_option(x, found) for x in _set_by(CONFIGS / f"{name}.flags")}
        wrong += [f"{name}: {x} is not stated" for x in given - stated]
    return wrong


def _option(flag: str, known: Values) -> str:
    """Returns the option of a flag, which may have "no" before its name."""
    return flag if flag in known else flag.removeprefix("no")


def _set_by(path: pathlib.Path) -> set[str]:
    """Returns the names of the flags that a flagfile sets, or includes."""
    names = set()
    for line in path.read_text("utf-8").splitlines():
        name, _, value = line.strip().removeprefix("--").partition("=")
        if name == "flagfile":
            names |= _set_by(path.parent / value)
        elif name.endswith("_options"):
            prefix = "linear_" if name.startswith("linear_") else ""
            prefix = "projection_" if name.startswith("proj") else prefix
            keys = [part.partition("=")[0] for part in value.split(",")]
            names |= {f"{prefix}{key}" for key in keys}
        elif line.startswith("--"):
            names.add(name)
    return names


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def document(content: dict[str, Any]) -> str:
    """Returns the text of docs/recipes.md: differences with their recipes."""
    options: dict[tuple[str, ...], list[str]] = {}
    for name in (*content["recipes"], *content["evaluations"]):
        given: dict[tuple[str, ...], list[str]] = {}
        for option, entry in authors(name, content).items():
            if len(entry) == 4:
                theirs, source, value, reason = entry
                stated = "not stated" if theirs is None else _text(theirs)
                row = f"{stated} ({source})", reason
                given.setdefault(row, []).append(f"{option} {_text(value)}")
        for row, values in given.items():
            options.setdefault((", ".join(values), *row), []).append(name)
    lines = [_INTRODUCTION]
    lines += _table(("here", "authors", "reason"), options, content)
    lines += ["", "## Sources", ""]
    lines += [f"- {key}: {text}" for key, text in content["sources"].items()]
    return "\n".join(lines) + "\n"


def _table(
    headings: tuple[str, ...],
    rows: dict[tuple[str, ...], list[str]],
    content: dict[str, Any],
) -> list[str]:
    """Returns the lines of a table, with the recipes of each row at its end."""
    known = [*content["recipes"], *content["evaluations"]]
    cells = [(*headings, "recipes"), ("---",) * (len(headings) + 1)]
    cells += [
        (*row, ", ".join(f"`{x}`" for x in _patterns(names, known)))
        for row, names in rows.items()
    ]
    return [f"| {' | '.join(row)} |" for row in cells]


def _patterns(names: list[str], known: list[str]) -> list[str]:
    """Returns `names`, with PREFIX* for all recipes of a common prefix."""
    patterns = []
    rest = list(names)
    while rest:
        words = rest[0].split("_")
        pattern, same = rest[0], [rest[0]]
        for count in range(len(words), 0, -1):
            prefix = "_".join(words[:count])
            wider = [x for x in known if x.startswith(prefix)]
            if len(wider) > 1 and set(wider) <= set(names):
                pattern, same = f"{prefix}*", wider
        patterns.append(pattern)
        rest = [x for x in rest if x not in same]
    return patterns


def main() -> int:
    """Writes the page; exits with 1 if a recipe is not as stated."""
    content = data()
    names = [*content["recipes"], *content["evaluations"]]
    if wrong := [line for n in names for line in unexplained(n, content)]:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    DOCUMENT.write_text(document(content), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
