"""Claims of the papers, as data: what is run, measured and expected.

`papers.json` holds every table and figure with its numbers, `claims.json` the
recipes of those that can be run. No claim has code of its own. This module
imports no TensorFlow, so that `reproduce --list` answers at once.
"""

import dataclasses
import functools
import hashlib
import importlib.resources
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tf_contrastive.base import errors, terminal

_FOLDER = importlib.resources.files("lab.claims")
SCALES = ("cpu", "paper")
# Next to RESULTS.md: the plots and results of the claims.
RESULTS = "results"
PRETRAIN, EVALUATE = "pretrain", "evaluate"
# Settings that train a baseline by the flags of `pretrain`, in place of it.
BASELINES = VAE, BYOL = "vae", "byol"

# Command or measure -> its flags or options; None removes it from a case or
# an arm. There may be several evaluations: `evaluate`, `evaluate:NAME`. The
# measure `evaluation` reads the first, `evaluation:NAME` another.
Settings = dict[str, Any]


def evaluations(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the flags of each evaluation by its name, "" the first."""
    commands = {name.partition(":"): value for name, value in settings.items()}
    return {
        name: flags
        for (command, _, name), flags in commands.items()
        if command == EVALUATE
    }


_HOW_TO_WRITE = "write it as in lab/claims/claims.json"


class Term(NamedTuple):
    """A value of an arm, such as "margin of SINCERE on CIFAR-2".

    Of several arms, the spread of their values: the largest minus the smallest;
    or the correlation of these values with others.
    """

    value: str
    arms: tuple[str, ...]
    case: str  # Empty: the case in which the relation is tested.
    other: str = ""  # The value that it is correlated with.

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the values that it reads."""
        return (self.value, self.other) if self.other else (self.value,)


AT_LEAST, AT_MOST, WITHIN = "at_least", "at_most", "within"
# Kinds of a relation -> their signs in its text.
_KINDS = {AT_LEAST: ">=", AT_MOST: "<=", WITHIN: "within"}


@dataclasses.dataclass(frozen=True)
class Relation:
    """left - right >= bound, <= bound, or within it, in each of `cases`.

    A bound on the claimed side of 0 is the smallest effect that counts; one on
    the other side, or on both, is a tolerance: that there is no more.

    A relation supports a part of the paper's claim if a reader of the paper
    would accept it as that part. Weaker relations, those that cannot fail, and
    those in another direction are measured in addition.
    """

    text: str
    left: tuple[Term, ...]  # Their sum.
    right: tuple[Term, ...]
    bound: float
    kind: str
    cases: tuple[str, ...]
    part: str = ""  # Which it supports; empty: the claim itself.
    also: str = ""  # Why it supports none; empty: it supports `part`.


@dataclasses.dataclass(frozen=True)
class Printed:
    """The paper's own numbers for a value of the recipe."""

    item: str
    value: str
    rows: Mapping[str, list[Any]]  # Arm -> the first cells of its row.
    columns: Mapping[str, str]  # Case or arm -> column.
    scale: float = 1.0  # Printed numbers are multiplied by it.


@dataclasses.dataclass(frozen=True)
class Select:
    """Flags of `pretrain` that are chosen for each arm, on a cut of train.

    Each candidate is trained and scored once per case, with a seed that is not
    judged; the best by `value` is used for all seeds.
    """

    flags: Mapping[str, list[list[str]]]  # Arm -> candidates.
    value: str  # Name of a value; the largest wins.
    # Further flags of the selection: the cut.
    pretrain: Sequence[str] = ()
    evaluate: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The runs for a claim at one scale."""

    arms: Mapping[str, Settings]
    cases: Mapping[str, Settings]
    # Name -> (measure, number) pairs; a run's value is its first measure's.
    values: Mapping[str, list[list[str]]]
    relations: tuple[Relation, ...]
    printed: tuple[Printed, ...]
    shared: Settings = dataclasses.field(default_factory=dict)
    select: Select | None = None
    seeds: int = 5
    minutes: float | None = None  # Of one seed, all cases and arms.
    # Parts of the paper's claim that no relation tests.
    untested: Sequence[str] = ()
    note: str = ""  # Differences from the paper.
    tried: Sequence[str] = ()  # Earlier settings, and their results.
    diagnosis: str = ""  # Why its result may be what it is.

    def settings(self, case: str, arm: str) -> Settings:
        """Returns the flags of each command and the options of each measure.

        Flagfiles come first, so that the other flags override them.
        """
        merged: Settings = {}
        dropped = set()
        for part in (self.shared, self.cases[case], self.arms[arm]):
            for name, value in part.items():
                if value is None:
                    dropped.add(name)
                elif isinstance(value, list):
                    merged[name] = merged.get(name, []) + value
                else:
                    merged[name] = merged.get(name, {}) | value
        for value in merged.values():
            if isinstance(value, list):
                value.sort(key=lambda x: not x.startswith("--flagfile="))
        return {k: v for k, v in merged.items() if k not in dropped}

    def units(self) -> Iterator[tuple[str, str]]:
        """Yields every (case, arm)."""
        yield from itertools.product(self.cases, self.arms)

    def paper_value(self, case: str, arm: str, value: str) -> float | None:
        """Returns the paper's number in the unit of the value, or None."""
        for table in self.printed:
            column = table.columns.get(case, table.columns.get(arm))
            if table.value == value and column and arm in table.rows:
                cell = items()[table.item].cell(table.rows[arm], column)
                return None if cell is None else float(cell) * table.scale
        return None


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, the tables and figures that it covers, and its recipes."""

    name: str
    claim: str  # The paper's, in our words; at most twelve.
    items: Sequence[str]
    recipes: Mapping[str, Recipe]  # Scale -> recipe.

    @property
    def reference(self) -> str:
        """The paper, with the claim's tables and figures."""
        covered = [items()[name] for name in self.items]
        places = dict.fromkeys(item.where for item in covered)
        return f"{covered[0].authors}, {', '.join(places)}"

    def recipe(self, scale: str) -> Recipe:
        """Returns the recipe at a scale, or raises `UserError`."""
        if scale not in self.recipes:
            raise errors.UserError(
                f"claim {self.name} has no recipe at"
                f" {errors.arg('scale', scale)}: choose"
                f" {errors.arg('scale', ' or '.join(self.recipes))}"
            )
        return self.recipes[scale]


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    name: str
    where: str
    claim: str
    note: str = ""  # What is to know; why there is no recipe.
    columns: Sequence[str] = ()
    rows: Sequence[list[Any]] = ()

    @property
    def authors(self) -> str:
        """Those of the paper, and its year."""
        return papers()[self.name.partition("-")[0]].partition(",")[0]

    def cell(self, row: list[Any], column: str) -> Any:
        """Returns a number of the row that starts with these cells."""
        for cells in self.rows:
            if cells[: len(row)] == row:
                return dict(zip(self.columns, cells, strict=True))[column]
        raise KeyError((self.name, row, column))


@functools.cache
def _papers() -> dict[str, Any]:
    return json.loads(_FOLDER.joinpath("papers.json").read_text("utf-8"))


def papers() -> dict[str, str]:
    """Returns prefix -> title of the paper."""
    return _papers()["papers"]


@functools.cache
def items() -> dict[str, Item]:
    """Returns every table and figure of the papers, by name."""
    given = _papers()["items"].items()
    return {name: Item(name, **fields) for name, fields in given}


def claims(path: str = "") -> dict[str, Claim]:
    """Reads claims, by name, from a JSON file; empty: the package's own.

    Raises:
      UserError: if the file cannot be read, or a claim is not valid.
    """
    file = Path(path) if path else _FOLDER.joinpath("claims.json")
    try:
        given = json.loads(file.read_text("utf-8"))
        if not isinstance(given, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise errors.UserError(
            f"{errors.arg('claims', path)} cannot be read ({error}):"
            f" {_HOW_TO_WRITE}"
        ) from error
    return claims_from(given, str(file))


def claims_from(given: Mapping[str, Any], file: str) -> dict[str, Claim]:
    """Returns claims by name, from the content of a JSON file."""
    read = {}
    for name, fields in given.items():
        try:
            _check_known("field", fields, ["claim", "items", *SCALES])
            _check_known("item", fields["items"], items())
            recipes = {s: _recipe(fields[s]) for s in SCALES if s in fields}
            read[name] = Claim(name, fields["claim"], fields["items"], recipes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            missing = " is missing" * isinstance(error, KeyError)
            raise errors.UserError(
                f"{file}: claim {name}: {error}{missing}; {_HOW_TO_WRITE}"
            ) from error
    return read


def claim_of(name: str, known: Mapping[str, Claim]) -> Claim | None:
    """Returns the claim of that name, or for that table or figure, if any."""
    if name in known:
        return known[name]
    return next((c for c in known.values() if name in c.items), None)


def find(name: str, known: Mapping[str, Claim]) -> Claim:
    """Returns the claim of a name, table or figure, or raises `UserError`."""
    if claim := claim_of(name, known):
        return claim
    if name in items():
        raise errors.UserError(
            f"{name} has no recipe: choose one of {', '.join(known)}"
        )
    raise errors.unknown("claim", name, known)


def landed(folder: str) -> dict[str, dict[str, Any]]:
    """Reads the results in a report's folder, by the name of the claim.

    Empty if there is no such folder. They were judged when they were written.
    """
    paths = sorted(Path(folder).glob("*/result.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def listing(
    known: Mapping[str, Claim], results: Mapping[str, dict[str, Any]]
) -> str:
    """Formats every table and figure: its result, and how it can be run.

    Items without a recipe have the reason instead.
    """
    headings = ("id", "paper", "result", "cpu", "paper's", "claim")
    rows = [headings]
    for name, item in items().items():
        status = cpu = paper = "-"
        text = item.claim
        if claim := claim_of(name, known):
            if small := claim.recipes.get("cpu"):
                cpu = f"{(small.minutes or 0) * small.seeds:g} min"
            paper = "yes" if "paper" in claim.recipes else "-"
            if result := results.get(claim.name):
                status = f"{result['verdict']} ({result['scale']})"
        else:
            text += f" No recipe: {item.note}"
        rows.append((name, item.where, status, cpu, paper, text))
    titles = [f"{k}: {title}" for k, title in papers().items()]
    table = terminal.format_table(rows, texts=range(len(headings)))
    return "\n".join([*titles, "", table])


def fingerprint(settings: Any) -> str:
    """Returns eight hexadecimal digits that identify settings."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _recipe(given: dict[str, Any]) -> Recipe:
    _check_known("field", given, [f.name for f in dataclasses.fields(Recipe)])
    cases = given.get("cases", {"": {}})
    values = {
        name: sources if isinstance(sources[0], list) else [sources]
        for name, sources in given.get("values", {}).items()
    }
    parsed = {
        "cases": cases,
        "values": values,
        "relations": tuple(
            read_relation(relation, cases, given["arms"], values)
            for relation in given.get("relations", ())
        ),
        "printed": tuple(Printed(**part) for part in given.get("printed", ())),
        "select": None,
    }
    if "select" in given:
        parsed["select"] = select = Select(**given["select"])
        _check_known("arm", select.flags, given["arms"])
        _check_known("value", [select.value], values)
    return Recipe(**{**given, **parsed})


def read_relation(
    given: dict[str, Any],
    cases: Collection[str],
    arms: Collection[str],
    values: Collection[str],
) -> Relation:
    """Reads a relation of terms, or of lists of terms, which are summed.

    A term is VALUE of ARM, or with " on CASE"; or, over all arms, "spread of
    VALUE" or "correlation of VALUE with VALUE".
    """
    fields = ["left", "right", *_KINDS, "cases", "part", "also"]
    _check_known("field of a relation", given, fields)
    if given.get("part") and given.get("also"):
        raise ValueError(f"{given['also']!r}: set part or also, not both")

    def term(text: str) -> Term:
        match = re.fullmatch(r"(.+) of (.+?)(?: on (.+))?", text)
        if not match:
            raise ValueError(f"{text!r} is not VALUE of ARM")
        value, arm, case = match.groups("")
        parsed = Term(value, (arm,), case)
        if value == "spread":
            parsed = Term(arm, tuple(arms), case)
        elif value == "correlation":
            value, _, other = arm.partition(" with ")
            parsed = Term(value, tuple(arms), case, other)
        _check_known("value", parsed.values, values)
        _check_known("arm", parsed.arms, arms)
        _check_known("case", [case] if case else [], cases)
        return parsed

    def side(name: str) -> list[str]:
        terms = given.get(name) or []
        return [terms] if isinstance(terms, str) else terms

    left, right = side("left"), side("right")
    kinds = [kind for kind in _KINDS if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"a relation has one of {', '.join(_KINDS)}")
    bound = given[kinds[0]]
    difference = " - ".join([" + ".join(left), *right])
    return Relation(
        f"{difference} {_KINDS[kinds[0]]} {bound:g}",
        tuple(map(term, left)),
        tuple(map(term, right)),
        float(bound),
        kinds[0],
        tuple(given.get("cases", cases)),
        given.get("part", ""),
        given.get("also", ""),
    )


def _check_known(
    kind: str, given: Collection[str], known: Collection[str]
) -> None:
    if unknown := set(given) - set(known):
        raise errors.unknown(kind, min(unknown), known)
