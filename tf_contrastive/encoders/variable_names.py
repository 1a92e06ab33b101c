"""Names of variables, of which Keras repeats some and numbers others."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence


def distinct(names: Sequence[str]) -> list[str]:
    """Adds its count to each name: layers of nested networks may share one."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}/{counts[name]}")
        counts[name] += 1
    return found


def counted_from_zero(names: Sequence[str]) -> list[str]:
    """Returns names in which layers of one kind are counted from 0.

    Keras numbers those without a name in the whole process ("conv2d_37"), as
    do networks that number their blocks ("conv_block37_conv").
    """
    split, numbers = [], defaultdict(set)
    for name in names:
        layer, _, rest = name.partition("/")
        if not re.search(r"_\d+$", layer):
            layer += "_0"
        kind = re.sub(r"\d+", "#", layer)
        number = tuple(map(int, re.findall(r"\d+", layer)))
        numbers[kind].add(number)
        split.append((kind, number, rest))
    ranks = {kind: sorted(found) for kind, found in numbers.items()}
    return [
        f"{kind}/{ranks[kind].index(number)}/{rest}"
        for kind, number, rest in split
    ]
