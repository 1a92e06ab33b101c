"""The protocol `tsne`: maps of h and z in two dimensions.

Chen et al. 2020 (SimCLR), appendix B.4, shows ten random classes.
"""

import numpy as np

from tf_contrastive import classifiers
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.evaluation import figures
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Measurement

# Of the map: test images and random classes, at most, and its perplexity.
EXAMPLES, CLASSES, PERPLEXITY = 2000, 10, 30.0


def tsne(
    embeddings: np.ndarray,
    perplexity: float = PERPLEXITY,
    seed: int = Evaluation.seed,
) -> tuple[np.ndarray, float]:
    """Maps embeddings [n, D] to the plane so that neighbours stay neighbours.

    n is at least 4; the perplexity, the effective number of neighbours, is at
    most a third of n. Returns (places float32 [n, 2], the remaining divergence
    in nats). Van der Maaten and Hinton 2008.
    """
    import threadpoolctl
    from sklearn import manifold

    rows = classifiers.check_embeddings("embeddings", embeddings)
    varied = np.ptp(rows, axis=0).any()
    mapper = manifold.TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3),
        # PCA needs two distinct points and two features.
        init="pca" if varied and rows.shape[1] > 1 else "random",
        random_state=seed % 2**32,
    )
    # With one thread sums have one order, and few rows are faster.
    with threadpoolctl.threadpool_limits(1):
        places = mapper.fit_transform(rows)
    return places, float(mapper.kl_divergence_)


def choose(
    labels: np.ndarray, classes: int, examples: int, seed: int
) -> np.ndarray:
    """Returns rows of random examples of random classes.

    `labels` are int [n], -1 where there are none; the rows increase.
    """
    random = np.random.RandomState(seed % 2**32)
    kinds = np.unique(labels)
    if len(kinds) > classes:
        kinds = random.choice(kinds, classes, replace=False)
    rows = np.flatnonzero(np.isin(labels, kinds))
    return np.sort(random.permutation(rows)[:examples])


def measure(context: EvaluationContext, *, seed: int) -> Measurement:
    """Maps test embeddings; without labels, in one colour.

    Divergences are in nats, "tsne_rows" are rows of the test split.
    """
    h, labels = context.embeddings("test")
    rows = choose(labels, CLASSES, EXAMPLES, seed)
    spaces = {"h": h}
    if context.subject.projection is not None:
        spaces["z"] = context.projections("test")[0]
    maps, metrics = {}, {}
    for name, embeddings in spaces.items():
        maps[name], metrics[f"divergence_{name}"] = tsne(
            embeddings[rows], seed=seed
        )
    arrays = {f"tsne_{name}": places for name, places in maps.items()}
    names = context.data.test.info.label_names
    figure = figures.maps(maps, labels[rows], names)
    return {
        "metrics": {**metrics, "images": len(rows)},
        "plots": {"tsne": figure},
        "arrays": arrays | {"tsne_rows": rows, "tsne_labels": labels[rows]},
    }
