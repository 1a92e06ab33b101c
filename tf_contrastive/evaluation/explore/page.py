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
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base import files, terminal
from tf_contrastive.evaluation.explore import images

# Lists of which the page has the first entries, and images of a group.
_LISTS = ("exact_duplicates", "near_duplicates", "suspects", "outliers")
_OF_GROUP = 50
# Above so many thumbnails they are smaller: side in pixels below and above.
_MANY, _SIDE, _SMALL_SIDE = 4_000, 96, 64
_POLICY = (
    "default-src 'none'; img-src data:; script-src '{script}';"
    " style-src '{style}'; base-uri 'none'; form-action 'none'"
)


def as_text(content: Any) -> str:
    """Returns an object as JSON on one line, null for NaN."""
    plain = files.as_json(content)
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def write(
    findings: dict[str, Any],
    splits: Sequence[images.Split],
    listed: int,
    queries: datasets.Source | None = None,
) -> str:
    """Returns the page of the content of explore.json, `findings`.

    `listed` entries of a list are on it, at most; `queries` are in their order.
    """
    folder = importlib.resources.files(__package__)
    parts = {
        name: (folder / f"page.{name}").read_text("utf-8")
        for name in ("html", "css", "js")
    }
    policy = _POLICY.format(
        script=_hash(parts["js"]), style=_hash(parts["css"])
    )
    # In a script element only a "<" could end the text.
    data = as_text(_content(findings, splits, listed, queries))
    values = {
        "POLICY": html.escape(policy, quote=True),
        "TITLE": html.escape(findings["title"]),
        "STYLE": parts["css"],
        "DATA": data.replace("<", "\\u003c"),
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


def _content(
    findings: dict[str, Any],
    splits: Sequence[images.Split],
    listed: int,
    queries: datasets.Source | None,
) -> dict[str, Any]:
    """Returns the findings of the images on the page, with thumbnails."""
    lists = {name: findings.get(name, [])[:listed] for name in _LISTS}
    items = [*lists["suspects"], *lists["outliers"]]
    for name in ("exact_duplicates", "near_duplicates"):
        lists[name] = [
            group
            | {"images": group["images"][:_OF_GROUP]}
            | {"total": len(group["images"])}
            for group in lists[name]
        ]
        items += [item for group in lists[name] for item in group["images"]]
    neighbors = findings["neighbors"]
    ids = {*findings["map"]["ids"], *(item["id"] for item in items)}
    ids |= {near for row in ids for near in neighbors[row]["neighbors"]}
    for query in findings["queries"]:
        ids |= {item["id"] for item in query["neighbors"]}
    shown = sorted(ids)
    side = _SMALL_SIDE if len(shown) > _MANY else _SIDE
    uris = _thumbnails(splits, np.array(shown), side)
    asked = []
    if queries:
        every = np.arange(queries.info.num_examples)
        asked = images.thumbnails(queries, every, _SIDE)
    return {
        **findings,
        **lists,
        "totals": {name: len(findings.get(name, [])) for name in _LISTS},
        "neighbors": [
            neighbors[row] | {"thumbnail": uri}
            for row, uri in zip(shown, uris, strict=True)
        ],
        "queries": [
            query | {"thumbnail": uri}
            for query, uri in zip(findings["queries"], asked, strict=True)
        ],
    }


def _thumbnails(
    splits: Sequence[images.Split], rows: np.ndarray, side: int
) -> list[str]:
    """Returns thumbnails of rows, increasing."""
    uris, start = [], 0
    with terminal.elapsed("thumbnails"):
        for split in splits:
            stop = start + len(split.embeddings)
            own = rows[(rows >= start) & (rows < stop)] - start
            if len(own):
                uris += images.thumbnails(split.source, own, side)
            start = stop
    return uris
