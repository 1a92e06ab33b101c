"""All findings on the images of some splits, as explore.json has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.explore import Exploration
from tf_contrastive.evaluation import tsne
from tf_contrastive.evaluation.explore import findings, images, near_copies
from tf_contrastive.evaluation.explore.near_copies import Pairs

# Nearest neighbours whose pixels are compared.
_CANDIDATES = 10


def explore(
    title: str,
    splits: Sequence[images.Split],
    options: Exploration,
    queries: images.Split | None = None,
) -> dict[str, Any]:
    """Finds neighbours, copies, suspects and outliers, and makes a map.

    The splits have no common images, and all are embedded by one encoder;
    `queries` are images from elsewhere. Returns the content of explore.json:
    all images are in `neighbors`, in the order of the splits, and an `id` is a
    place there. Raises `UserError` for splits of other classes, or fewer than
    two different images.
    """
    h = np.concatenate([split.embeddings for split in splits])
    labels, classes = _classes(splits)
    items = _items(splits, labels, classes)
    looked = [images.look(split.source) for split in splits]
    keys, pictures = map(np.concatenate, zip(*looked, strict=True))
    distinct = findings.distinct(keys)
    count = len(distinct.rows)
    if count < 2:
        raise errors.UserError(
            f"all of the {len(h):,} images are equal: use at least two"
            " different ones"
        )
    bank = h[distinct.rows]
    labelled = (labels[distinct.rows] >= 0).sum()
    voters = findings.usual_votes(labelled, len(classes))
    most = min(max(options.neighbors, voters, _CANDIDATES), count - 1)
    with terminal.elapsed("neighbours"):
        nearest = findings.neighbors(bank, most)
    rows, cosines = (part[:, : options.neighbors] for part in nearest)
    with terminal.elapsed("near copies"):
        pairs = near_copies.find(
            pictures[distinct.rows],
            nearest.rows[:, :_CANDIDATES],
            options.near_correlation,
        )
    scores = cosines.astype(np.float64).mean(axis=1)
    far = np.argsort(scores, kind="stable")

    def scored(rows: np.ndarray, cosines: np.ndarray) -> list[dict[str, Any]]:
        pairs = zip(distinct.rows[rows].tolist(), cosines.tolist(), strict=True)
        return [items[row] | {"cosine": round(c, 6)} for row, c in pairs]

    def copies(rows: np.ndarray) -> dict[str, Any]:
        same = [items[row] for row in rows.tolist()]
        return {
            "across_splits": len({item["split"] for item in same}) > 1,
            "classes_differ": len({*labels[rows].tolist()} - {-1}) > 1,
            "images": same,
        }

    exact = [copies(rows) for rows in findings.groups(distinct.place)]
    near = [
        copies(rows) | {"correlation": float(correlation)}
        for rows, correlation in _near_groups(pairs, distinct)
    ]
    exact.sort(key=lambda x: (not x["across_splits"], not x["classes_differ"]))
    near.sort(key=lambda x: (not x["across_splits"], -x["correlation"]))
    content = {
        "title": title,
        "images": len(items),
        "splits": {split.name: len(split.names) for split in splits},
        "classes": classes,
        "near_correlation": options.near_correlation,
        "exact_duplicates": exact,
        "near_duplicates": near,
        "outliers": scored(far, scores[far]),
        "queries": [],
    }
    if queries:
        parts = classifiers.nearest_neighbors(
            bank,
            queries.embeddings,
            min(options.neighbors, count),
            cosine=True,
        )
        places = map(np.concatenate, zip(*parts, strict=True))
        content["queries"] = [
            {"name": name, "neighbors": scored(rows, cosines)}
            for name, cosines, rows in zip(queries.names, *places, strict=True)
        ]
    if voters:
        votes = findings.vote(
            labels,
            distinct,
            nearest.rows[:, :voters],
            np.stack([pairs.first, pairs.second], axis=1),
        )
        content |= {"voters": voters, "agreement": votes.agreement(labels)}
        content["suspects"] = [
            items[row]
            | {
                "vote": classes[votes.winner[row]],
                "support": votes.support[row],
                "missing": votes.missing[row],
            }
            for row in votes.suspects(labels).tolist()
        ]
    return content | {
        "map": _map(h, options),
        "neighbors": [
            item | {"neighbors": near, "cosines": cosines}
            for item, near, cosines in zip(
                items,
                distinct.rows[rows[distinct.place]].tolist(),
                cosines[distinct.place].astype(float).round(6).tolist(),
                strict=True,
            )
        ],
    }


# ---- The images --------------------------------------------------------------


def _classes(splits: Sequence[images.Split]) -> tuple[np.ndarray, list[str]]:
    """Returns labels, numbers of the classes that occur, and their names."""
    every = [split.source.info.label_names for split in splits]
    named = {names for names in every if names}
    if len(named) > 1:
        raise errors.UserError(
            f"{' and '.join(split.name for split in splits)} have other"
            " classes: use splits of the same classes"
        )
    labels = np.concatenate([split.labels for split in splits])
    values, numbers = np.unique(labels[labels >= 0], return_inverse=True)
    labels[labels >= 0] = numbers
    names = dict(enumerate(named.pop())) if named else {}
    return labels, [str(names.get(x, x)) for x in values.tolist()]


def _items(
    splits: Sequence[images.Split], labels: np.ndarray, classes: list[str]
) -> list[dict[str, Any]]:
    """Describes each image."""
    names = [*classes, None]  # The last is that of label -1.
    items: list[dict[str, Any]] = []
    for split in splits:
        for index, name in enumerate(split.names):
            row = len(items)
            items.append(
                {
                    "id": row,
                    "split": split.name,
                    "index": index,
                    "name": name,
                    "class": names[labels[row]],
                }
            )
    return items


# ---- Findings ----------------------------------------------------------------


def _near_groups(
    pairs: Pairs, distinct: findings.Distinct
) -> list[tuple[np.ndarray, float]]:
    """Returns (rows, least correlation of a pair) of groups of near copies."""
    near = findings.components(len(distinct.rows), pairs.first, pairs.second)
    least = np.full([near.max() + 1], np.inf)
    np.minimum.at(least, near[pairs.first], pairs.correlations)
    near = near[distinct.place]
    found = [(rows, least[near[rows[0]]]) for rows in findings.groups(near)]
    # Groups of exact copies alone have no pair.
    return [group for group in found if np.isfinite(group[1])]


def _map(h: np.ndarray, options: Exploration) -> dict[str, Any]:
    """Returns how the map was made, its images, and their places.

    Places have their middle at 0, and the longer side is 1.
    """
    random = np.random.RandomState(options.seed)
    ids = np.sort(random.permutation(len(h))[: options.map_images])
    rows = classifiers.normalize(h[ids])
    if options.map == "tsne" and len(ids) >= 4:
        with terminal.elapsed(f"map of {len(ids):,} images by t-SNE"):
            places, by = tsne.tsne(rows, seed=options.seed)[0], "t-SNE"
    else:
        from sklearn import decomposition

        size = min(2, *rows.shape)
        places = decomposition.PCA(size, random_state=0).fit_transform(rows)
        places, by = np.pad(places, ((0, 0), (0, 2 - size))), "PCA"
    low, high = places.min(axis=0), places.max(axis=0)
    side = (high - low).max() or 1.0
    places = ((places - (low + high) / 2) / side).astype(float).round(4)
    return {"by": by, "ids": ids.tolist(), "places": places.tolist()}
