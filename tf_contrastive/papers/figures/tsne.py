"""Maps of embeddings in two dimensions, by t-SNE.

The protocol `tsne`: Chen et al. 2020 (SimCLR), appendix B.5; of h and of z, of
ten random classes.
"""

from typing import Any

import numpy as np

from tf_contrastive import classifiers, errors
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.protocols import RepresentationProtocols
from tf_contrastive.papers.figures import plots

_FIELDS = RepresentationProtocols


def tsne(
    embeddings: np.ndarray,
    perplexity: float = _FIELDS.tsne_perplexity,
    seed: int = Evaluation.seed,
) -> tuple[np.ndarray, float]:
    """Lays embeddings out in a plane so that neighbours stay neighbours.

    Args:
      embeddings: float [n, D], n at least 4.
      perplexity: neighbours that count, above 1; less than a third of n.
      seed: of the optimisation.

    Returns:
      (places float32 [n, 2], the divergence in nats that remains).

    Raises:
      UserError: for NaN, or too few rows.

    Van der Maaten and Hinton 2008; by scikit-learn.
    """
    import threadpoolctl
    from sklearn import manifold

    rows = classifiers.check_embeddings("embeddings", embeddings)
    if len(rows) < 4:
        raise errors.UserError(
            f"embeddings have {len(rows)} row(s): give at least 4 to map"
        )
    if not perplexity > 1:
        raise errors.UserError(f"perplexity={perplexity}: must be above 1")
    spread = np.ptp(rows, axis=0).any()
    mapper = manifold.TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3),
        # Of one point, or one feature, there are no two principal components.
        init="pca" if spread and rows.shape[1] > 1 else "random",
        random_state=seed % 2**32,
    )
    # One thread: sums in another order would lay out another map, and many
    # threads wait for one another longer than so few rows take.
    with threadpoolctl.threadpool_limits(1):
        places = mapper.fit_transform(rows)
    return places, float(mapper.kl_divergence_)


def choose(
    labels: np.ndarray, classes: int, examples: int, seed: int
) -> np.ndarray:
    """Returns rows of random examples of random classes, increasing.

    Args:
      labels: int [n], -1 where there are none.
      classes: at most.
      examples: at most.
      seed: which.
    """
    random = np.random.RandomState(seed % 2**32)
    kinds = np.unique(labels)
    if len(kinds) > classes:
        kinds = random.choice(kinds, classes, replace=False)
    rows = np.flatnonzero(np.isin(labels, kinds))
    return np.sort(random.permutation(rows)[:examples])


def measure(
    subject: Any,
    *,
    tsne_examples: int = _FIELDS.tsne_examples,
    tsne_classes: int = _FIELDS.tsne_classes,
    tsne_perplexity: float = _FIELDS.tsne_perplexity,
    seed: int = Evaluation.seed,
) -> dict[str, Any]:
    """The protocol `tsne`; of data without labels, a map of one colour.

    Args:
      subject: an encoder under evaluation, see `subject.Subject`.
      tsne_examples: test images, at most.
      tsne_classes: random classes, at most.
      tsne_perplexity: see `tsne`.
      seed: which images, and of the maps.

    Returns:
      A measurement: metrics "divergence_h" and "divergence_z" (nats) and
      "images"; a plot of both maps; arrays "tsne_h", "tsne_z" [n, 2],
      "tsne_rows" [n] (of the test split) and "tsne_labels" [n].
    """
    h, labels = subject.embeddings("test")
    rows = choose(labels, tsne_classes, tsne_examples, seed)
    spaces = {"h": h}
    if subject.projection is not None:
        spaces["z"] = subject.projections("test")[0]
    maps, metrics = {}, {}
    for name, embeddings in spaces.items():
        maps[name], metrics[f"divergence_{name}"] = tsne(
            embeddings[rows], tsne_perplexity, seed
        )
    arrays = {f"tsne_{name}": places for name, places in maps.items()}
    return {
        "metrics": {**metrics, "images": len(rows)},
        "plots": {
            "tsne": plots.maps(
                maps, labels[rows], subject.test.info.label_names
            )
        },
        "arrays": {
            **arrays,
            "tsne_rows": rows,
            "tsne_labels": labels[rows],
        },
    }


def needs(subject: Any) -> str | None:
    """What keeps `tsne` from being measured, in one line, or None."""
    if subject.test.info.num_examples < 4:
        return f"{subject.test.info.name} has less than 4 images"
    return None
