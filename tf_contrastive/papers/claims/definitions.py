"""Claims of the papers, as data: what is run, measured, and expected.

Read from two files: `papers.json`, every table and figure with its numbers, and
`claims.json`, recipes of those that can be run. A recipe is a table of command
lines: what its cases share, what each case and each arm adds, and seeds. No
claim has code of its own; what is read off a run is a name of `measures`.
"""

import dataclasses
import hashlib
import importlib.resources
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tf_contrastive import errors

SCALES = ("cpu", "paper")
COMMANDS = ("pretrain", "evaluate")
# Seeds of a recipe that names none.
SEEDS = 5
# Of runs that choose among settings: none that a claim is tested on.
SELECTION_SEED = 1000

# Command, or measure -> its flags, or options; None: not of this case or arm.
Settings = dict[str, Any]
# (measure, number); of several, a unit's value is the first that it has.
Sources = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a relation: a number, or a value of an arm in a case."""

    number: float | None = None
    value: str = ""
    arm: str = ""
    case: str = ""  # Empty: the case that the relation is tested in.

    def __str__(self) -> str:
        if self.number is not None:
            return f"{self.number:g}"
        place = f" on {self.case}" if self.case else ""
        return f"{self.value} of {self.arm}{place}"


@dataclasses.dataclass(frozen=True)
class Relation:
    """left - right is at least, or at most, `bound`, in each of `cases`."""

    left: Side
    right: Side
    bound: float
    at_least: bool
    cases: tuple[str, ...]

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        if self.right == Side(number=0.0):
            return f"{self.left} {sign} {self.bound:g}"
        return f"{self.left} - {self.right} {sign} {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class Printed:
    """Where the paper's own numbers stand for a value of the recipe."""

    item: str
    value: str
    rows: Mapping[str, list[Any]]  # Arm -> the first cells of its row.
    columns: Mapping[str, str]  # Case, or arm, -> column.
    scale: float = 1.0  # What a printed number is multiplied by.


@dataclasses.dataclass(frozen=True)
class Selection:
    """Settings that each arm chooses in each case, on a cut of train."""

    grid: Mapping[str, list[str]]  # Flag of pretrain, no dashes -> values.
    pretrain: list[str]  # What cuts train, beside the recipe's flags.
    evaluate: list[str]  # In place of the recipe's.
    value: str  # Of `values`, of which the highest is chosen.


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is run for a claim at one scale."""

    note: str  # What differs from the paper.
    minutes: float | None  # Of one seed, all cases and arms.
    seeds: int
    shared: Settings
    cases: Mapping[str, Settings]
    arms: Mapping[str, Settings]
    values: Mapping[str, Sources]
    relations: tuple[Relation, ...]
    printed: tuple[Printed, ...]
    pictures: Mapping[str, str]  # File within a run's evaluation -> caption.
    select: Selection | None
    tried: tuple[str, ...]  # What was run before, and how it came out.

    def settings(self, case: str, arm: str) -> Settings:
        """What an arm's commands and measures get in a case, before seeds.

        Flagfiles come first, so that the flags beside them win, whichever part
        of the recipe has them.
        """
        parts = (self.shared, self.cases[case], self.arms[arm])
        merged: Settings = {}
        dropped = set()
        for part in parts:
            for name, given in part.items():
                if given is None:
                    dropped.add(name)
                elif isinstance(given, list):
                    merged[name] = merged.get(name, []) + given
                else:
                    merged[name] = merged.get(name, {}) | given
        for name in COMMANDS:
            if name in merged:
                merged[name].sort(key=lambda x: not x.startswith("--flagfile="))
        return {k: v for k, v in merged.items() if k not in dropped}

    def units(self) -> Iterator[tuple[str, str]]:
        """Yields every (case, arm)."""
        for case in self.cases:
            for arm in self.arms:
                yield case, arm


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim, what it stands in, and how to run it."""

    name: str
    claim: str
    items: tuple[str, ...]
    recipes: Mapping[str, Recipe]  # Scale -> recipe.

    def recipe(self, scale: str) -> Recipe:
        """The recipe at a scale.

        Raises:
          UserError: if there is none.
        """
        if scale not in self.recipes:
            raise errors.UserError(
                f"claim {self.name} has no recipe at --scale={scale}: give"
                f" --scale={' or '.join(self.recipes)}"
            )
        return self.recipes[scale]


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or a figure of a paper."""

    name: str
    where: str
    replicable: str  # By "cpu": a small run; "paper": its own; "none".
    claim: str
    note: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()

    @property
    def paper(self) -> str:
        """The paper's prefix, such as SI."""
        return self.name.partition("-")[0]

    def cell(self, row: list[Any], column: str) -> Any:
        """The number in the row that starts with these cells; None: blank.

        Raises:
          KeyError: if there is no such cell.
        """
        for cells in self.rows:
            if list(cells[: len(row)]) == row:
                return dict(zip(self.columns, cells, strict=True))[column]
        raise KeyError((self.name, row, column))


def papers() -> dict[str, str]:
    """Prefix -> the paper."""
    return _packaged("papers.json")["papers"]


def items() -> dict[str, Item]:
    """Every table and figure of the papers, by name."""
    return {
        name: Item(
            name,
            **{k: v for k, v in found.items() if k not in ("columns", "rows")},
            columns=tuple(found.get("columns", ())),
            rows=tuple(map(tuple, found.get("rows", ()))),
        )
        for name, found in _packaged("papers.json")["items"].items()
    }


def claims(path: str = "") -> dict[str, Claim]:
    """Claims by name.

    Args:
      path: a JSON file of the form of the package's own; empty: that one.

    Raises:
      UserError: for a file that is no such thing.
    """
    if not path:
        return _read("claims.json", _packaged("claims.json"))
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise errors.UserError(
            f"--claims={path} cannot be read ({error}): give a JSON file of"
            " the form of tf_contrastive/reproduction/claims.json"
        ) from error
    return _read(path, found)


def of_item(name: str, known: Mapping[str, Claim]) -> Claim | None:
    """The claim that runs a table or figure, if one does."""
    if name in known:
        return known[name]
    return next((c for c in known.values() if name in c.items), None)


def find(name: str, known: Mapping[str, Claim]) -> Claim:
    """The claim of that name, or that runs that table or figure.

    Raises:
      UserError: if there is none.
    """
    if claim := of_item(name, known):
        return claim
    if name in items():
        raise errors.UserError(
            f"{name} has no recipe: these have one, {', '.join(known)}"
        )
    raise errors.unknown("claim", name, known)


def fingerprint(settings: Any) -> str:
    """Eight letters that differ where settings do."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _packaged(name: str) -> Any:
    place = importlib.resources.files("tf_contrastive.papers.claims")
    return json.loads(place.joinpath(name).read_text("utf-8"))


def _read(path: str, found: Any) -> dict[str, Claim]:
    read = {}
    for name, given in found.items():
        try:
            read[name] = _claim(name, given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            missing = " is missing" * isinstance(error, KeyError)
            raise errors.UserError(
                f"{path}: claim {name}: {error}{missing}; write it as those of"
                " tf_contrastive/reproduction/claims.json"
            ) from error
    return read


def _claim(name: str, given: dict[str, Any]) -> Claim:
    known = items()
    about = tuple(given["items"])
    if unknown := set(about) - set(known):
        raise errors.unknown("item", min(unknown), known)
    recipes = {
        scale: _recipe(given[scale]) for scale in SCALES if scale in given
    }
    if rest := set(given) - {"claim", "items", *SCALES}:
        raise errors.unknown("field", min(rest), ["claim", "items", *SCALES])
    return Claim(name, given["claim"], about, recipes)


def _recipe(given: dict[str, Any]) -> Recipe:
    cases, arms = given.get("cases", {"": {}}), given["arms"]
    recipe = Recipe(
        note=given.get("note", ""),
        minutes=given.get("minutes"),
        seeds=given.get("seeds", SEEDS),
        shared=given.get("shared", {}),
        cases=cases,
        arms=arms,
        values={
            name: [tuple(source) for source in _several(sources)]
            for name, sources in given.get("values", {}).items()
        },
        relations=tuple(
            _relation(relation, tuple(cases), tuple(arms))
            for relation in given.get("relations", ())
        ),
        printed=tuple(Printed(**part) for part in given.get("printed", ())),
        pictures=given.get("pictures", {}),
        select=Selection(**given["select"]) if "select" in given else None,
        tried=tuple(given.get("tried", ())),
    )
    if rest := set(given) - {f.name for f in dataclasses.fields(Recipe)}:
        fields = [field.name for field in dataclasses.fields(Recipe)]
        raise errors.unknown("field", min(rest), fields)
    for relation in recipe.relations:
        for side in (relation.left, relation.right):
            if side.number is None and side.value not in recipe.values:
                raise errors.unknown("value", side.value, recipe.values)
    return recipe


def _several(sources: list[Any]) -> list[list[str]]:
    return sources if isinstance(sources[0], list) else [sources]


def _relation(
    given: dict[str, Any], cases: tuple[str, ...], arms: tuple[str, ...]
) -> Relation:
    at_least = "at_least" in given
    bound = given["at_least"] if at_least else given["at_most"]
    return Relation(
        _side(given["left"], cases, arms),
        _side(given.get("right", 0.0), cases, arms),
        float(bound),
        at_least,
        tuple(given.get("cases", cases)),
    )


def _side(given: Any, cases: tuple[str, ...], arms: tuple[str, ...]) -> Side:
    """Reads a number, or words: VALUE of ARM, VALUE of ARM on CASE."""
    if isinstance(given, int | float):
        return Side(number=float(given))
    words, _, case = given.partition(" on ")
    value, _, arm = words.partition(" of ")
    if arm not in arms:
        raise errors.unknown("arm", arm, arms)
    if case and case not in cases:
        raise errors.unknown("case", case, cases)
    return Side(value=value, arm=arm, case=case)
