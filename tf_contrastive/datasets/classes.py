"""Classes of folders and lists: names that are one class, and numbers."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import split_spec


def _written(name: str) -> str:
    """Returns a name without what nobody sees: file systems differ in it."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def _spoken(name: str) -> str:
    """Returns a name as it is spoken: letter case and separators differ."""
    shown = (c for c in name if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", "".join(shown)).casefold()
    plain = unicodedata.normalize("NFKC", folded)
    return re.sub(r"[\s_-]+", " ", plain).strip()


def _alike(names: Iterable[str], form: Callable[[str], str]) -> list[list[str]]:
    """Groups names by a form of theirs; both are sorted."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(form(name), []).append(name)
    return sorted(groups.values())


def numbered(
    name: str, split: str, by_split: Mapping[str, Iterable[str]]
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Numbers the classes of all splits in sorted order.

    Names that differ in Unicode's normal form or in white space are one class.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: names of classes.

    Returns:
      (a name per class, name -> number).

    Raises:
      UserError: if a class of one split differs from one of another split in
        letter case only.
    """
    of_split = {key: set(names) for key, names in by_split.items()}
    groups = _alike(set().union(*of_split.values()), _written)
    number = {name: i for i, group in enumerate(groups) for name in group}
    label_names = tuple(group[0] for group in groups)
    for group in groups:
        if len(group) > 1:
            spellings = " and ".join(map(ascii, group))
            terminal.warning(f"{name}: {spellings} are one class")
    numbers = {
        key: {number[label] for label in names}
        for key, names in of_split.items()
    }
    for group in _alike(label_names, _spoken):
        if len(group) == 1:
            continue
        same = {number[label] for label in group}
        spellings = " and ".join(map(repr, group))
        if not any(len(same & held) > 1 for held in numbers.values()):
            raise errors.UserError(
                f"{name}: {spellings} are in different splits, and differ in"
                " letter case or separators only: give them one name"
            )
        terminal.warning(
            f"{name}: {spellings} are different classes; if they are one, give"
            " them one name"
        )
    _compare(name, split, numbers, lambda number: label_names[number])
    return label_names, number


def integers(
    name: str,
    split: str,
    by_split: Mapping[str, Iterable[int]],
    reading: Reading,
) -> int:
    """Checks labels that are integers; returns the number of classes.

    Args:
      name: of the dataset.
      split: the one that is opened, a key of `by_split`.
      by_split: the labels that occur, less `first_label`.
      reading: options.
    """
    numbers = {key: set(labels) for key, labels in by_split.items()}
    every = set().union(*numbers.values())
    check_smallest(name, min(every), reading)
    count = max(every) + 1
    if 2 * len(every) < count:
        terminal.warning(
            f"{name}: {count - len(every):,} of {count:,} classes have no"
            " image: number the classes from 0, without gaps"
        )
    _compare(name, split, numbers, str)
    return count


def check_smallest(name: str, smallest: int, reading: Reading) -> None:
    """Raises `UserError` unless the labels, less `first_label`, start at 0."""
    if smallest == 1 and reading.first_label is None:
        raise errors.UserError(
            f"{name}: its labels start at 1: set"
            f" {errors.arg('first_label', '1')}, or"
            f" {errors.arg('first_label', '0')} if there is a class 0"
        )
    if smallest < 0:
        first = reading.first_label or 0
        is_none = smallest + first == -1
        raise errors.UserError(
            f"{name}: its smallest label is {smallest + first}: write labels of"
            f" at least {first}"
            + f", or set {errors.arg('unlabelled', 'own_views')}"
            * is_none
        )


def _compare(
    name: str,
    split: str,
    numbers: Mapping[str, set[int]],
    shown: Callable[[int], str],
) -> None:
    """Warns of classes of a split that are never trained."""
    train = next(
        (s for s in numbers if split_spec.meaning(s) == "train"), split
    )
    held = numbers[split]
    if numbers[train] and (new := sorted(held - numbers[train])):
        terminal.warning(
            f"{name}: {len(new)} of the {len(held)} classes of {split} are not"
            f" in {train}, such as {shown(new[0])}"
        )
