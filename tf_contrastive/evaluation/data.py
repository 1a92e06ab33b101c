"""The two splits that an encoder is scored on, and their labels."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import errors

NO_IMAGE = "nothing to embed: the split holds no readable image"
_Value = TypeVar("_Value")


class Cache:
    """Values by key, each made once."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Returns `make()` of the first call with this key."""
        if key not in self._values:
            self._values[key] = make()
        return self._values[key]


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """A split to learn from and a split to score."""

    train: datasets.Source
    test: datasets.Source
    _labels: Cache = dataclasses.field(default_factory=Cache, init=False)

    def source(self, split: str) -> datasets.Source:
        """Returns the split "train" or "test"."""
        return {"train": self.train, "test": self.test}[split]

    def labels(self, split: str) -> np.ndarray:
        """Reads a split's labels, int32 [n], -1 where there are none.

        Without images; cached, not to be modified. Raises `UserError` if there
        are no images, or a label is out of range.
        """

        def read() -> np.ndarray:
            source = self.source(split)
            if not source.info.num_examples:
                raise errors.UserError(NO_IMAGE)
            if not source.info.has_labels:
                return np.full([source.info.num_examples], -1, np.int32)
            return checked_labels(source.labels(), source.info)

        return self._labels.get(split, read)


def checked_labels(labels: np.ndarray, info: datasets.Info) -> np.ndarray:
    """Returns labels as int32; raises `UserError` if one is out of range."""
    classes = info.num_classes or 0
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise errors.UserError(
            f"{info.name} {info.split} holds label {wrong[0]} but declares"
            f" {classes} classes, 0 to {classes - 1}: fix its labels"
        )
    return labels.astype(np.int32)
