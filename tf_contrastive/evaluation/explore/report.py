"""All findings on the images of some splits, and what of them is shown."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_contrastive import classifiers, datasets
from tf_contrastive.base import errors, installation, terminal
from tf_contrastive.config.explore import MAX_EXACT, Exploration
from tf_contrastive.evaluation import tsne
from tf_contrastive.evaluation.explore import findings, images, near_copies

# Nearest neighbours whose pixels are compared.
_CANDIDATES = 10
# Least correlation of near copies; the higher one where more than a fraction of
# the neighbours are above the lower one, since drawings are alike.
_CORRELATION, _HIGH, _COMMON = 0.75, 0.95, 0.05
# Images on a map by t-SNE, at most, if nothing else is chosen.
_TSNE = 5_000
# Images of a group on the page.
OF_GROUP = 50
# Above so many thumbnails they are smaller: side in pixels below and above.
_MANY, _SIDE, _SMALL_SIDE = 4_000, 96, 64


class Group(NamedTuple):
    """Copies: rows int [g], and the least likeness of a pair among them."""

    rows: np.ndarray
    likeness: float = 1.0


class Query(NamedTuple):
    """An image from elsewhere, and the rows of its neighbours."""

    name: str
    thumbnail: str
    rows: np.ndarray
    cosines: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """All findings; rows are places in `splits`, one after the other.

    Attributes:
      title: names the images and the encoder.
      splits: the images.
      options: what was asked for.
      names, indices, labels: of all images, [n]; `of` is the number of their
        split.
      label_names: a name per class.
      distinct: the different images; `found` are neighbours among them.
      is_exact: whether all pairs were compared.
      by_pixels: whether copies were found by pixels, not by embeddings.
      limit: least likeness of near copies.
      exact, near: groups of copies, those across splits first.
      votes: of neighbours, `voters` for each image.
      suspects: rows, the most suspicious first.
      outliers: rows, the farthest first; `scores` are their mean cosines.
      mixing: of classes.
      mapped, places: rows on the map, and float32 [m, 2].
      queries: images from elsewhere.
    """

    title: str
    splits: Sequence[images.Split]
    options: Exploration
    names: list[str]
    indices: np.ndarray
    labels: np.ndarray
    of: np.ndarray
    label_names: tuple[str, ...]
    distinct: findings.Distinct
    found: findings.Neighbors
    is_exact: bool
    by_pixels: bool
    limit: float
    exact: list[Group]
    near: list[Group]
    voters: int
    votes: findings.Votes | None
    suspects: np.ndarray
    outliers: np.ndarray
    scores: np.ndarray
    mixing: findings.Mixing | None
    mapped: np.ndarray
    places: np.ndarray
    map: str
    queries: list[Query]

    def neighbors(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (rows, cosines) of the neighbours of an image."""
        place, k = self.distinct.place[row], self.options.neighbors
        rows = self.distinct.rows[self.found.rows[place, :k]]
        return rows, self.found.cosines[place, :k]

    def class_name(self, label: int) -> str | None:
        """Returns the name of a class; None without a label."""
        if label < 0:
            return None
        named = label < len(self.label_names)
        return self.label_names[label] if named else str(label)

    def crosses(self, group: Group) -> bool:
        """Whether a group has images of several splits."""
        return len({*self.of[group.rows]}) > 1

    def disagrees(self, group: Group) -> bool:
        """Whether a group has images of several classes."""
        return len({*self.labels[group.rows]} - {-1}) > 1

    @functools.cached_property
    def agreement(self) -> float | None:
        """Fraction of the judged images whose label wins the vote."""
        if self.votes is None:
            return None
        judged = np.isfinite(self.votes.missing)
        wins = (self.votes.winner == self.labels)[judged]
        return float(wins.mean()) if len(wins) else None

    @functools.cached_property
    def shown(self) -> np.ndarray:
        """Rows of the images on the page, increasing."""
        count = self.options.listed
        groups = (*self.exact[:count], *self.near[:count])
        chosen = [
            self.mapped,
            self.suspects[:count],
            self.outliers[:count],
            *(group.rows[:OF_GROUP] for group in groups),
        ]
        rows = np.unique(np.concatenate(chosen)).astype(np.int64)
        near = self.found.rows[self.distinct.place[rows]]
        near = self.distinct.rows[near[:, : self.options.neighbors].ravel()]
        others = [query.rows for query in self.queries]
        return np.unique(np.concatenate([rows, near, *others]))

    def thumbnails(self, rows: np.ndarray) -> list[str]:
        """Returns thumbnails of rows, increasing; "" of absent images."""
        many = len(rows) > _MANY
        side = self.options.thumbnail_side or (_SMALL_SIDE if many else _SIDE)
        uris, start = [], 0
        for split in self.splits:
            stop = start + len(split.names)
            own = rows[(rows >= start) & (rows < stop)] - start
            if split.source is None or not len(own):
                uris += [""] * len(own)
            else:
                uris += images.thumbnails(split.source, own, side)
            start = stop
        return uris

    # ---- explore.json --------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Returns all findings, for programs."""
        content: dict[str, Any] = {
            "title": self.title,
            "images": len(self.names),
            "splits": {s.name: len(s.names) for s in self.splits},
            "copies_by": "pixels" if self.by_pixels else "embeddings",
            "neighbors_by": "all pairs" if self.is_exact else "faiss",
            f"near_{self.likeness}": self.limit,
            "exact_duplicates": [self._group(x) for x in self.exact],
            "near_duplicates": [
                self._group(x) | {self.likeness: x.likeness} for x in self.near
            ],
            "outliers": [
                self.item(row) | {"cosine": score}
                for row, score in zip(
                    self.outliers[: self.options.listed],
                    self.scores,
                    strict=False,
                )
            ],
            "queries": [
                {"name": query.name}
                | {"neighbors": self._near(query.rows, query.cosines)}
                for query in self.queries
            ],
            "neighbors": [
                self.item(row) | {"neighbors": self._near(*self.neighbors(row))}
                for row in self.mapped.tolist()
            ],
        }
        if self.votes is None or self.mixing is None:
            return content
        content |= {
            "voters": self.voters,
            "agreement": self.agreement,
            "suspects": [
                self.item(row)
                | {
                    "vote": self.class_name(self.votes.winner[row]),
                    "support": self.votes.support[row],
                    "missing": self.votes.missing[row],
                }
                for row in self.suspects.tolist()
            ],
            "class_neighbors": [
                {
                    "class": self.class_name(of),
                    "neighbor_class": self.class_name(to),
                    "share": share,
                    "neighbors": count,
                }
                for of, to, share, count in zip(
                    *(part.tolist() for part in self.mixing), strict=True
                )
            ],
        }
        return content

    @property
    def likeness(self) -> str:
        """What the likeness of near copies is."""
        return "correlation" if self.by_pixels else "cosine"

    def item(self, row: int) -> dict[str, Any]:
        """Describes an image."""
        return {
            "split": self.splits[self.of[row]].name,
            "index": int(self.indices[row]),
            "name": self.names[row],
            "class": self.class_name(self.labels[row]),
        }

    def _near(self, rows: np.ndarray, cosines: np.ndarray) -> list[Any]:
        pairs = zip(rows.tolist(), cosines.tolist(), strict=True)
        return [self.item(row) | {"cosine": round(c, 6)} for row, c in pairs]

    def _group(self, group: Group) -> dict[str, Any]:
        return {
            "across_splits": self.crosses(group),
            "classes_differ": self.disagrees(group),
            "images": [self.item(row) for row in group.rows.tolist()],
        }


# ---- Finding -----------------------------------------------------------------


def explore(
    title: str,
    splits: Sequence[images.Split],
    options: Exploration,
    queries: tuple[datasets.Source, np.ndarray] | None = None,
) -> Report:
    """Finds all that a report has.

    Args:
      title: names the images and the encoder.
      splits: images without common ones, embedded by one encoder.
      options: what is looked for.
      queries: images from elsewhere, and their embeddings.

    Raises:
      UserError: for embeddings, or a number of images, that cannot be compared.
    """
    h, labels, label_names = _joined(splits)
    of = np.repeat(np.arange(len(splits)), [len(s.names) for s in splits])
    sources = [split.source for split in splits if split.source]
    by_pixels = len(sources) == len(splits)
    pictures = None
    if by_pixels:
        pixels = [images.look(source) for source in sources]
        keys = np.concatenate([each.digests for each in pixels])
        pictures = np.concatenate([each.pictures for each in pixels])
    else:
        keys = images.equal_rows(h)
    distinct = findings.distinct(keys)
    count = len(distinct.rows)
    if count < 2:
        raise errors.UserError(
            f"all of the {len(h):,} images are equal: use at least two"
            " different ones"
        )
    voters = min(count - 1, options.votes or _usual_votes(distinct, labels))
    k = max(options.neighbors, voters, _CANDIDATES)
    is_exact = len(h) <= MAX_EXACT
    search = findings.neighbors if is_exact else findings.approximate_neighbors
    if not is_exact:
        terminal.info("neighbours are found by faiss, which misses a few")
    found = search(
        h[distinct.rows], min(k, count - 1), images.progress("neighbours")
    )
    pairs, limit = _near_copies(found, distinct, pictures, options)
    near = findings.components(count, pairs.first, pairs.second)
    votes = mixing = None
    suspects = np.zeros([0], np.int64)
    if (labels >= 0).any():
        voting = findings.Neighbors(*(part[:, :voters] for part in found))
        copies = np.stack([pairs.first, pairs.second], axis=1)
        votes = findings.vote(labels, distinct, voting, copies)
        suspects = votes.suspects(labels)
        mixing = findings.mixing(
            distinct.labels(labels), found, min(options.neighbors, k)
        )
    far, scores = findings.outliers(found, options.neighbors)
    random = np.random.RandomState(options.seed)
    mapped = np.sort(random.permutation(len(h))[: options.map_images])
    kind, places = _map(h[mapped], options)
    report = Report(
        title=title,
        splits=splits,
        options=options,
        names=[name for split in splits for name in split.names],
        indices=np.concatenate([split.indices for split in splits]),
        labels=labels,
        of=of,
        label_names=label_names,
        distinct=distinct,
        found=found,
        is_exact=is_exact,
        by_pixels=by_pixels,
        limit=limit,
        exact=[Group(rows) for rows in findings.groups(distinct.place)],
        near=_near_groups(near, pairs, distinct),
        voters=voters,
        votes=votes,
        suspects=suspects,
        outliers=distinct.rows[far],
        scores=scores,
        mixing=mixing,
        mapped=mapped,
        places=places,
        map=kind,
        queries=_queries(queries, h, distinct, options),
    )

    def order(group: Group) -> tuple[bool, bool, float]:
        crosses, disagrees = report.crosses(group), report.disagrees(group)
        return not crosses, not disagrees, -group.likeness

    return dataclasses.replace(
        report,
        exact=sorted(report.exact, key=order),
        near=sorted(report.near, key=order),
    )


def check_count(count: int) -> None:
    """Raises `UserError` for more images than can be compared here."""
    if count <= MAX_EXACT:
        return
    if problem := installation.missing("faiss", "faiss"):
        raise errors.UserError(
            f"{count:,} images: the neighbours of more than {MAX_EXACT:,} are"
            f" found by {problem}, or set {errors.arg('split', 'train[:50%]')}"
        )


def _joined(
    splits: Sequence[images.Split],
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Returns embeddings, labels and names of classes of all splits."""
    features = [split.embeddings.shape[1] for split in splits]
    if len({*features}) > 1:
        raise errors.UserError(
            f"{splits[0].name} has {features[0]} features and"
            f" {splits[1].name} {features[1]}: embed all by one encoder"
        )
    named = [split for split in splits if split.label_names]
    for split in named:
        if split.label_names != named[0].label_names:
            raise errors.UserError(
                f"{named[0].name} and {split.name} have other classes: use"
                " splits of the same classes"
            )
    h = np.concatenate([split.embeddings for split in splits])
    check_count(len(h))
    labels = np.concatenate([split.labels for split in splits])
    return h, labels, named[0].label_names if named else ()


def _usual_votes(distinct: findings.Distinct, labels: np.ndarray) -> int:
    given = labels[distinct.rows]
    given = given[given >= 0]
    return findings.usual_votes(len(given), len(np.unique(given)))


def _near_copies(
    found: findings.Neighbors,
    distinct: findings.Distinct,
    pictures: np.ndarray | None,
    options: Exploration,
) -> tuple[near_copies.Pairs, float]:
    """Returns pairs of distinct images, and their least likeness."""
    candidates = found.rows[:, :_CANDIDATES]
    if pictures is not None:
        limit = options.near_correlation or _CORRELATION
        pairs, compared = near_copies.find(
            pictures[distinct.rows],
            candidates,
            limit,
            images.progress("pairs of near copies"),
        )
        common = len(pairs.first) / max(compared, 1)
        if options.near_correlation is None and common > _COMMON:
            terminal.warning(
                f"{common:.0%} of the neighbours have details that correlate by"
                f" {limit} or more, as those of drawings or of a video: near"
                f" copies are those from {_HIGH} on; set"
                f" {errors.arg('near_correlation')} for another limit"
            )
            limit = _HIGH
        return pairs.from_limit(limit), limit
    cosines = found.cosines[:, :_CANDIDATES]
    rows, places = np.nonzero(cosines >= options.near_cosine)
    pairs = near_copies.Pairs(
        rows, candidates[rows, places], cosines[rows, places]
    )
    return pairs, options.near_cosine


def _near_groups(
    near: np.ndarray, pairs: near_copies.Pairs, distinct: findings.Distinct
) -> list[Group]:
    """Returns the groups of several different images, with their copies."""
    least = np.full([near.max() + 1], np.inf)
    np.minimum.at(least, near[pairs.first], pairs.correlations)
    several = np.bincount(near) > 1
    groups = findings.groups(near[distinct.place])
    numbers = [near[distinct.place[rows[0]]] for rows in groups]
    return [
        Group(rows, float(least[number]))
        for rows, number in zip(groups, numbers, strict=True)
        if several[number]
    ]


def _map(h: np.ndarray, options: Exploration) -> tuple[str, np.ndarray]:
    """Returns the kind of map, and places float32 [m, 2]."""
    rows = classifiers.normalize(h)
    kind = options.map
    if kind == "auto":
        kind = "tsne" if len(h) <= _TSNE else "pca"
    if kind == "tsne" and len(h) >= 4:
        with terminal.elapsed(f"map of {len(h):,} images by t-SNE"):
            return kind, tsne.tsne(rows, seed=options.seed)[0]
    from sklearn import decomposition

    size = min(2, *rows.shape)
    places = decomposition.PCA(size, random_state=0).fit_transform(rows)
    return "pca", np.pad(places, ((0, 0), (0, 2 - size)))


def _queries(
    queries: tuple[datasets.Source, np.ndarray] | None,
    h: np.ndarray,
    distinct: findings.Distinct,
    options: Exploration,
) -> list[Query]:
    if queries is None:
        return []
    source, embeddings = queries
    bank = classifiers.check_embeddings("embeddings", h[distinct.rows])
    embeddings = classifiers.check_embeddings("embeddings", embeddings)
    parts: Iterable = classifiers.nearest_neighbors(
        bank, embeddings, min(options.neighbors, len(bank)), cosine=True
    )
    cosines, rows = map(np.concatenate, zip(*parts, strict=True))
    every = np.arange(len(embeddings))
    side = options.thumbnail_side or _SIDE
    uris = images.thumbnails(source, every, side)
    split = images.of_source(source, embeddings)
    return [
        Query(split.names[i], uris[i], distinct.rows[rows[i]], cosines[i])
        for i in every.tolist()
    ]
