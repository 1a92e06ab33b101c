"""Counts and times of requests, in the text format of Prometheus."""

import bisect
import collections
from collections.abc import Mapping, Sequence

_PREFIX = "tf_contrastive_serve"
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Histogram:
    """Counts of values up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        lines, total = [], 0
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        for bound, count in zip(bounds, self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.9g}", f"{name}_count {total}"]


class Metrics:
    """What a server counts; used in its event loop."""

    def __init__(self) -> None:
        # (kind of request, status code) -> their number.
        self._requests: collections.Counter[tuple[str, int]] = (
            collections.Counter()
        )
        self._seconds = _Histogram(_SECONDS)
        self._rows = _Histogram(_ROWS)

    def request(self, kind: str, status: int, seconds: float) -> None:
        """Counts a response; the seconds of successful predictions."""
        self._requests[kind, status] += 1
        if kind == "predict" and status == 200:
            self._seconds.observe(seconds)

    def batch(self, rows: int) -> None:
        """Counts a batch that is computed."""
        self._rows.observe(rows)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Writes all of them.

        Args:
          gauges: name without prefix -> (help, value), at present.
        """
        lines = []

        def add(name: str, kind: str, help: str, values: list[str]) -> None:
            lines.append(f"# HELP {name} {help}")
            lines.append(f"# TYPE {name} {kind}")
            lines.extend(values)

        name = f"{_PREFIX}_requests_total"
        counts = [
            f'{name}{{kind="{kind}",code="{code}"}} {count}'
            for (kind, code), count in sorted(self._requests.items())
        ]
        add(name, "counter", "Responses by kind and HTTP code.", counts)
        for name, help, histogram in (
            (
                "predict_seconds",
                "Seconds of successful predictions.",
                self._seconds,
            ),
            ("batch_rows", "Rows of the batches computed.", self._rows),
        ):
            name = f"{_PREFIX}_{name}"
            add(name, "histogram", help, histogram.lines(name))
        for name, (help, value) in gauges.items():
            name = f"{_PREFIX}_{name}"
            add(name, "gauge", help, [f"{name} {value:.15g}"])
        return "\n".join(lines) + "\n"
