"""Tables for people, as text. Layer 1: imports nothing of the package."""

from collections.abc import Container, Sequence


def laid_out(rows: Sequence[Sequence[str]], texts: Container[int]) -> str:
    """Pads columns to their widths.

    Args:
      rows: of cells, the headings first.
      texts: which columns, from 0, are text and start on the left; the others
        are numbers.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(cells)
        ).rstrip()

    return "\n".join(map(line, rows))
