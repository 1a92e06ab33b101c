"""Names of variables, which Keras numbers in the whole process."""

import re
from collections import defaultdict
from collections.abc import Sequence


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
