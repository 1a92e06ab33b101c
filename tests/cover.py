"""Chooses few of many cases."""


def cover(values, most=None):
    """Returns names that together have each value which any of them has.

    Args:
      values: name -> set of values. Each time the name with most values that
        are not covered yet is taken, of equal ones the first.
      most: how many names; None: as many as that takes.
    """
    chosen, left = [], set().union(*values.values())
    while left and len(chosen) != most:
        name = max(values, key=lambda name: len(values[name] & left))
        chosen.append(name)
        left -= values[name]
    return sorted(chosen)
