"""A report as one HTML page, which needs no server and no network.

`page.html` is its template. All text of the data is in a block of JSON, which
the page's script shows as text; the page's security policy allows its own
script and style, and images within the page.
"""

import base64
import hashlib
import html
import importlib.resources
import json
from typing import Any

import numpy as np

from tf_contrastive.base import files
from tf_contrastive.evaluation.explore.report import (
    OF_GROUP,
    Group,
    Report,
)

# Classes of a table of all pairs.
_TABLE = 40
_POLICY = (
    "default-src 'none'; img-src data:; script-src '{script}';"
    " style-src '{style}'; base-uri 'none'; form-action 'none'"
)


def as_text(content: Any) -> str:
    """Returns an object as JSON on one line, null for NaN."""
    plain = files.as_json(content)
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def write(report: Report) -> str:
    """Returns the page."""
    folder = importlib.resources.files(__package__)
    parts = {
        name: (folder / f"page.{name}").read_text("utf-8")
        for name in ("html", "css", "js")
    }
    policy = _POLICY.format(
        script=_hash(parts["js"]), style=_hash(parts["css"])
    )
    # In a script element only a "<" could end the text.
    data = as_text(_content(report)).replace("<", "\\u003c")
    values = {
        "POLICY": html.escape(policy, quote=True),
        "TITLE": html.escape(report.title),
        "STYLE": parts["css"],
        "DATA": data,
        "SCRIPT": parts["js"],
    }
    text = parts["html"]
    pieces = []
    for name, value in values.items():  # In their order in the template.
        before, text = text.split(f"{{{{{name}}}}}")
        pieces += [before, value]
    return "".join([*pieces, text])


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _content(report: Report) -> dict[str, Any]:
    """Returns what the page shows; images are numbers of its own."""
    shown, options = report.shown, report.options
    number = {row: i for i, row in enumerate(shown.tolist())}
    count = options.listed

    def neighbors(rows: np.ndarray, cosines: np.ndarray) -> list[list]:
        pairs = zip(rows.tolist(), cosines.tolist(), strict=True)
        # Those of a neighbour may have no thumbnail here.
        return [[number[r], round(c, 4)] for r, c in pairs if r in number]

    def groups(every: list[Group]) -> list[dict[str, Any]]:
        return [
            {
                "images": [number[r] for r in group.rows[:OF_GROUP].tolist()],
                "total": len(group.rows),
                "crosses": report.crosses(group),
                "disagrees": report.disagrees(group),
                "likeness": round(group.likeness, 4),
            }
            for group in every[:count]
        ]

    places = dict(
        zip(report.mapped.tolist(), report.places.tolist(), strict=True)
    )
    content: dict[str, Any] = {
        "title": report.title,
        "splits": [[s.name, len(s.names)] for s in report.splits],
        "total": len(report.names),
        "byPixels": report.by_pixels,
        "likeness": report.likeness,
        "limit": report.limit,
        "map": report.map,
        "neighbors": options.neighbors,
        "names": [report.names[row] for row in shown],
        "indices": report.indices[shown],
        "split": report.of[shown],
        "labels": report.labels[shown],
        "thumbnails": report.thumbnails(shown),
        "places": [
            [round(x, 3) for x in places[row]] if row in places else None
            for row in shown.tolist()
        ],
        "near": [neighbors(*report.neighbors(row)) for row in shown.tolist()],
        "exactGroups": groups(report.exact),
        "exactTotal": len(report.exact),
        "nearGroups": groups(report.near),
        "nearTotal": len(report.near),
        "outliers": [
            [number[row], round(score, 4)]
            for row, score in zip(
                report.outliers[:count].tolist(),
                report.scores.tolist(),
                strict=False,
            )
        ],
        "queries": [
            {
                "name": query.name,
                "thumbnail": query.thumbnail,
                "near": neighbors(query.rows, query.cosines),
            }
            for query in report.queries
        ],
        "classes": [],
        "suspects": [],
    }
    if report.votes is None or report.mixing is None:
        return content
    votes, mixed = report.votes, report.mixing
    classes = int(report.labels.max()) + 1
    pairs = [
        [of, to, round(share, 4), number_of]
        for of, to, share, number_of in zip(
            *(part.tolist() for part in mixed), strict=True
        )
    ]
    others = [pair for pair in pairs if pair[0] != pair[1]]
    content |= {
        "classes": [report.class_name(i) for i in range(classes)],
        "voters": report.voters,
        "agreement": report.agreement,
        "suspectsTotal": len(report.suspects),
        "suspects": [
            [
                number[row],
                int(votes.winner[row]),
                round(float(votes.support[row]), 4),
                round(float(votes.missing[row]), 4),
            ]
            for row in report.suspects[:count].tolist()
        ],
        "mixing": others[:count],
        "table": pairs if classes <= _TABLE else None,
    }
    return content
