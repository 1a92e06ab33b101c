"""How a split was understood, in rows for people."""

import time
from typing import NamedTuple

import numpy as np

from tf_contrastive.datasets import overlap
from tf_contrastive.datasets.source import Source

Rows = dict[str, str | float | list[str] | None]

# Labels read from files at a time.
_BATCH = 256
# Classes that are listed, and unreadable images that are named.
_LISTED = _NAMED = 10


class Classes(NamedTuple):
    """The classes of a split, or of its first examples."""

    sizes: np.ndarray  # Examples of each class, int64 [classes].
    examples: int  # That were counted.


def count_classes(source: Source, seconds: float) -> Classes | None:
    """Counts the examples of each class; None without labels.

    Labels in files are read from the first on, for about `seconds`. An example
    of several classes counts for each.
    """
    info = source.info
    if info.num_classes is None:
        return None
    sizes = np.zeros([info.num_classes], np.int64)
    if source.arrays is not None:
        batches = iter([source.arrays["label"].numpy()])
    else:
        labels = source.records.map(lambda record: record["label"])
        batches = labels.batch(_BATCH).as_numpy_iterator()
    examples, end = 0, time.perf_counter() + seconds
    for batch in batches:
        examples += len(batch)
        classes = batch.nonzero()[1] if info.multi_label else batch
        known = (classes >= 0) & (classes < len(sizes))
        sizes += np.bincount(classes[known], minlength=len(sizes))
        if time.perf_counter() > end:
            break
    return Classes(sizes, examples)


def describe(source: Source, classes: Classes | None) -> Rows:
    """Returns name -> value of what is known of a split, and of its classes."""
    info = source.info
    rows: Rows = {
        "dataset": f"{info.name} {info.split}",
        **{what: value for what, value in info.found if value},
        "examples": info.num_examples,
        "classes": info.num_classes,
    }
    if classes is not None:
        part = classes.examples < info.num_examples
        heading = [f"of the first {classes.examples:,} images:"] * part
        rows["class_sizes"] = heading + _sizes(classes.sizes, info.label_names)
        if not part:
            rows["smallest_class"] = int(classes.sizes.min())
            rows["largest_class"] = int(classes.sizes.max())
    rows["unreadable_images"] = len(info.bad_images)
    if info.bad_images:
        rows["unreadable"] = ", ".join(info.bad_images[:_NAMED])
    rows["copies"] = None if source.files is None else "not compared"
    if copies := overlap.find_copies(source):
        number, names = copies
        rows["copies"] = f"{number:,}" + f" ({names})" * bool(names)
    return rows


def _sizes(sizes: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Lists the largest classes with their sizes."""
    order = np.argsort(-sizes, kind="stable")[:_LISTED]
    lines = [f"{names[i] if names else i}: {sizes[i]:,}" for i in order]
    if len(sizes) > _LISTED:
        lines.append(f"and {len(sizes) - _LISTED:,} smaller ones")
    return lines
