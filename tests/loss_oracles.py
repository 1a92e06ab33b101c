"""Every loss as its paper writes it: float64 NumPy, anchor by anchor.

Slow and plain on purpose: the tests hold the package's fast losses against
these. A loss of anchors returns two arrays [B, V]: the value of each anchor,
and whether it is counted (an anchor without a positive is not, and has value
0); `reduce` joins them. `align_uniform` and `swd` are no mean over anchors and
return a float.

Notation: s(i, k) is the similarity of embeddings i and k, both (image, view);
P(i) the positives of anchor i, N(i) its negatives, A(i) every embedding but i.
The last `small_views` of an image's views are anchors, and in none of these.
"""

import math

import numpy as np
import scipy.optimize

# ---- What the losses share ---------------------------------------------------


def prepare(projections, normalize):
    """The vectors that are compared, float64 [B, V, P]; 0 has no direction."""
    z = np.array(projections, np.float64)
    norms = np.linalg.norm(z, axis=-1, keepdims=True)
    return z / np.where(norms > 0, norms, 1.0) if normalize else z


def similarities(z, temperature=1.0):
    """Returns s, with s[i, v][j, u] = z[i, v] . z[j, u] / temperature."""
    embeddings = list(np.ndindex(z.shape[:2]))
    return {
        a: {b: float(z[a] @ z[b]) / temperature for b in embeddings}
        for a in embeddings
    }


def same_class(labels):
    """Bool [B, B]: equal labels, or for multi-hot ones any shared class.

    An image without a label, -1, shares none with another.
    """
    labels = np.asarray(labels)
    batch = len(labels)
    same = np.zeros([batch, batch], bool)
    for i, j in np.ndindex(batch, batch):
        if labels.ndim == 1:
            same[i, j] = labels[i] == labels[j] and (labels[i] >= 0 or i == j)
        else:
            same[i, j] = np.any((labels[i] > 0) & (labels[j] > 0))
    return same


def weight(labels, i, j, overlap):
    """Of images i and j: 1, or their labels in common over all of theirs."""
    rows = np.asarray(labels)
    if overlap == "any" or rows.ndim == 1 or i == j:
        return 1.0
    a, b = ({*np.flatnonzero(rows[k]).tolist()} for k in (i, j))
    return len(a & b) / len(a | b)


def log_sum_exp(values):
    """log(sum(exp(values))); -inf if there are none."""
    return np.logaddexp.reduce(list(values))


def softplus(x):
    """log(1 + exp(x))."""
    return np.logaddexp(0.0, x)


def mean(values, weights=()):
    """The mean, by weights if there are any, and 0 of none."""
    values = list(values)
    weights = weights or [1.0] * len(values)
    total = sum(v * w for v, w in zip(values, weights, strict=True))
    return total / sum(weights) if values else 0.0


def reduce(values, counted, reduction="mean"):
    """The loss: the sum over anchors, or that divided by those counted."""
    total = np.sum(values[counted])
    return total if reduction == "sum" else total / max(np.sum(counted), 1)


def zeros(z):
    """Values of the anchors, and whether they are counted: none yet."""
    return np.zeros(z.shape[:2]), np.zeros(z.shape[:2], bool)


def other_views(i, v, views):
    """The other embeddings of the anchor's image, in view order."""
    return [(i, u) for u in range(views) if u != v]


def other_images(i, batch, views):
    """The embeddings of all other images, ordered by image, then view."""
    return [(j, u) for j in range(batch) if j != i for u in range(views)]


# ---- Cross entropy over similarities -----------------------------------------


def _noise(negatives, positives, temperature, tau_plus, beta):
    """log of the negatives' sum: hard (Robinson), then debiased (Chuang)."""
    if not negatives:
        return -math.inf
    number = len(negatives)
    hard = log_sum_exp((1 + beta) * s for s in negatives)
    if beta:
        weights = log_sum_exp(beta * s for s in negatives)
        hard += math.log(number) - weights
    if not tau_plus or not positives:
        return hard
    lowest = math.log(number) - 1 / temperature
    positive = log_sum_exp(positives) - math.log(len(positives))
    left = 1 - tau_plus * number * math.exp(positive - hard)
    if left <= 0:
        return lowest
    return max(hard + math.log(left / (1 - tau_plus)), lowest)


def ntxent(
    projections,
    *,
    temperature=0.1,
    negatives="all_views",
    denominator="all",
    tau_plus=0.0,
    beta=0.0,
    normalize=True,
    small_views=0,
):
    """NT-Xent: SimCLR Eq 1, and its footnote 4 for `other_view`; DCL."""
    z = prepare(projections, normalize)
    s = similarities(z, temperature)
    batch, views = len(z), z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        positives = [s[i, v][p] for p in other_views(i, v, views)]
        if negatives == "all_views":
            others = other_images(i, batch, views)
        else:
            others = [(j, 1 - v) for j in range(batch) if j != i]
        among = [s[i, v][k] for k in others]
        if not positives:
            continue
        counted[i, v] = True
        noise = _noise(among, positives, temperature, tau_plus, beta)
        if denominator == "only_negatives" and not among:
            continue
        with_noise = [noise] if among else []
        for p in positives:
            own = {"all": positives, "one_positive": [p]}.get(denominator, [])
            values[i, v] += log_sum_exp([*own, *with_noise]) - p
        values[i, v] /= len(positives)
    return values, counted


def without(i, keys, labels):
    """The embeddings that are of image i, or of one that has a label."""
    labels = np.asarray(labels)
    has = labels >= 0 if labels.ndim == 1 else labels.sum(axis=1) > 0
    return [k for k in keys if k[0] == i or has[k[0]]]


def split(i, v, same, views):
    """P(i) in the order of the cap, and N(i), for anchor (i, v)."""
    others = other_images(i, len(same), views)
    positives = [k for k in others if same[i, k[0]]]
    negatives = [k for k in others if not same[i, k[0]]]
    return other_views(i, v, views) + positives, negatives


def _supcon(
    projections,
    labels,
    join,
    *,
    temperature=0.1,
    contrast="all_views",
    denominator="all",
    positives_cap=None,
    keep_dropped_positives=False,
    scale_by_temperature=False,
    epsilon=0.0,
    normalize=True,
    unlabelled="refuse",
    unlabelled_negatives=True,
    overlap="any",
    small_views=0,
):
    """SupCon; `join` makes a value of log-probabilities and their weights.

    `epsilon` is taken from the positive's own term of the denominator.
    """
    z = prepare(projections, normalize)
    s = similarities(z, temperature)
    same = same_class(labels)
    views = z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        positives, others = split(i, v, same, views)
        if not unlabelled_negatives:
            others = without(i, others, labels)
        if positives_cap is not None:
            dropped = positives[positives_cap:]
            positives = positives[:positives_cap]
            if keep_dropped_positives:
                others = others + dropped
        if not positives or (contrast == "one_view" and v > 0):
            continue
        counted[i, v] = True
        logs = []
        for p in positives:
            if denominator == "all":
                below = positives + others
            elif denominator == "one_positive":
                below = [p, *others]
            else:
                below = others
            if below:
                terms = [s[i, v][k] - epsilon * (k == p) for k in below]
                logs.append(s[i, v][p] - log_sum_exp(terms))
        if logs:
            weights = [weight(labels, i, p[0], overlap) for p in positives]
            values[i, v] = join(logs, weights)
            if scale_by_temperature:
                values[i, v] *= temperature
    return values, counted


def supcon(projections, labels, **options):
    """SupCon's L_out (SC Eq 2, 19): the mean stands outside the logarithm."""
    return _supcon(
        projections, labels, lambda logs, w: -mean(logs, w), **options
    )


def supcon_in(projections, labels, **options):
    """SupCon's L_in (SC Eq 1): the mean stands inside the logarithm."""
    return _supcon(
        projections,
        labels,
        lambda logs, w: math.log(sum(w)) - log_sum_exp(logs + np.log(w)),
        **options,
    )


def eps_supinfonce(
    projections,
    labels,
    *,
    temperature=0.1,
    epsilon=0.25,
    epsilon_in="logit",
    **options,
):
    """Epsilon-SupInfoNCE (SI Eq 15), in logits or in cosines."""
    options |= {"temperature": temperature, "denominator": "one_positive"}
    epsilon = epsilon / temperature if epsilon_in == "cosine" else epsilon
    return supcon(projections, labels, epsilon=epsilon, **options)


def sincere(projections, labels, **options):
    """SINCERE (SI Eq 12): a positive against itself and the negatives."""
    return eps_supinfonce(projections, labels, epsilon=0.0, **options)


def npairs(
    projections, labels, *, temperature=1.0, normalize=True, small_views=0
):
    """N-pairs (SC Eq 21) against the next image of the class, cyclically."""
    z = prepare(projections, normalize)
    s = similarities(z, temperature)
    same = same_class(labels)
    batch, views = len(z), z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        following = [(i + step) % batch for step in range(1, batch)]
        partners = [j for j in following if same[i, j]]
        if partners:
            counted[i, v] = True
            everything = other_views(i, v, views) + other_images(
                i, batch, views
            )
            log_sum = log_sum_exp(s[i, v][k] for k in everything)
            values[i, v] = log_sum - s[i, v][partners[0], v % views]
    return values, counted


def moco(
    projections,
    *,
    keys,
    queue,
    queue_mask=None,
    temperature=0.1,
    normalize=True,
):
    """MoCo: a query's own key against the keys of earlier batches."""
    queries = prepare(projections, normalize)
    keys = prepare(keys, normalize)
    queue = prepare(queue, normalize)
    batch, views, _ = queries.shape
    values = np.zeros([batch, views])
    for i, v in np.ndindex(batch, views):
        positive = queries[i, v] @ keys[i, v] / temperature
        logits = [positive]
        for index, row in enumerate(queue):
            if queue_mask is None or queue_mask[index]:
                logits.append(queries[i, v] @ row / temperature)
        values[i, v] = log_sum_exp(logits) - positive
    return values, np.ones([batch, views], bool)


# ---- Margins and logistic losses ---------------------------------------------


def triplet(projections, labels, *, margin=0.2, normalize=True, small_views=0):
    """Batch-hard triplet: the farthest positive, the nearest negative."""
    z = prepare(projections, normalize)
    same = same_class(labels)
    views = z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        positives, negatives = split(i, v, same, views)
        if positives and negatives:
            counted[i, v] = True
            far = max(np.sum((z[i, v] - z[p]) ** 2) for p in positives)
            near = min(np.sum((z[i, v] - z[n]) ** 2) for n in negatives)
            values[i, v] = max(far - near + margin, 0.0)
    return values, counted


def _against_negatives(
    projections,
    positive_term,
    negative_term,
    limit,
    *,
    negatives="other_view",
    mining="none",
    negative_reduction="mean",
    normalize=True,
    small_views=0,
):
    """What `margin` and `nt_logistic` share: the choice of the negatives.

    The terms are functions of the positive's similarity, and of the positive's
    and a negative's. Semi-hard negatives (SR Sec 5.1) are less than `limit`
    below the positive.
    """
    z = prepare(projections, normalize)
    s = similarities(z)
    batch, views = len(z), z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        candidates = other_images(i, batch, views)
        if negatives == "other_view":
            candidates = [(j, u) for j, u in candidates if u != v]
        terms = []
        for p in other_views(i, v, views):
            positive = s[i, v][p]
            chosen = [s[i, v][k] for k in candidates]
            if mining == "semi_hard":
                chosen = [x for x in chosen if positive - limit < x < positive]
                chosen = [max(chosen)] if chosen else []
            repulsion = [negative_term(positive, x) for x in chosen]
            if negative_reduction == "mean":
                repulsion = [mean(repulsion)]
            terms.append(positive_term(positive) + sum(repulsion))
        if terms:
            counted[i, v] = True
            values[i, v] = mean(terms)
    return values, counted


def margin(projections, *, margin=0.4, **options):
    """Margin triplet of similarities (SR Table 2)."""
    return _against_negatives(
        projections,
        lambda positive: 0.0,
        lambda positive, negative: max(negative - positive + margin, 0.0),
        margin,
        **options,
    )


def nt_logistic(projections, *, temperature=0.1, **options):
    """NT-Logistic (SR Table 2)."""
    return _against_negatives(
        projections,
        lambda positive: softplus(-positive / temperature),
        lambda positive, negative: softplus(negative / temperature),
        math.inf,
        **options,
    )


# ---- Alignment and distribution ----------------------------------------------


def decoupled_ntxent(
    projections,
    *,
    temperature=1.0,
    weight=0.1,
    normalize=True,
    alignment="mean_square",
    scale=None,
    small_views=0,
):
    """Decoupled NT-Xent (IP table 1, row 1; or Eq 5), as a mean over anchors.

    IP A: temperature 1, lambda 0.1, and times 1000 with mean squares of
    normalized vectors.
    """
    if scale is None:
        scale = 1000.0 if alignment == "mean_square" and normalize else 1.0
    z = prepare(projections, normalize)
    s = similarities(z)
    batch, views = len(z), z.shape[1] - small_views
    values, counted = zeros(z)
    for i, v in np.ndindex(values.shape):
        positives = other_views(i, v, views)
        everything = positives + other_images(i, batch, views)
        if positives:
            counted[i, v] = True
            if alignment == "mean_square":
                align = mean(np.mean((z[i, v] - z[p]) ** 2) for p in positives)
            else:
                align = -mean(s[i, v][p] for p in positives)
            log_sum = log_sum_exp(s[i, v][k] / temperature for k in everything)
            values[i, v] = scale * (align + weight * log_sum)
    return values, counted


def align(projections, *, normalize=True):
    """L_align of IP Table 1: squared distances of an image's views.

    The mean over images and pairs of different views, divided by d, as the
    golden value 0.0605404267 (n = 4, d = 2) has it.
    """
    z = prepare(projections, normalize)
    batch, views, dimensions = z.shape
    total = 0.0
    for i in range(batch):
        total += mean(
            np.sum((z[i, v] - z[i, u]) ** 2)
            for v, u in np.ndindex(views, views)
            if v != u
        )
    return total / (batch * dimensions)


def uniform(projections, *, temperature=0.5, include_self=True, normalize=True):
    """L_dist of IP Table 1, row 1: the mean over embeddings.

    As the golden values have it, where the table prints 1/n.
    """
    z = prepare(projections, normalize)
    s = similarities(z, temperature)
    batch, views, _ = z.shape
    logs = []
    for i, v in np.ndindex(batch, views):
        candidates = other_views(i, v, views) + other_images(i, batch, views)
        if include_self:
            candidates.append((i, v))
        if candidates:
            logs.append(log_sum_exp(s[i, v][k] for k in candidates))
    return mean(logs)


def align_uniform(
    projections,
    *,
    temperature=0.5,
    weight=1.0,
    include_self=True,
    normalize=True,
    scale=1.0,
):
    """IP Table 1, row 1: `align` + weight * `uniform`."""
    options = {"temperature": temperature, "include_self": include_self}
    distribution = uniform(projections, normalize=normalize, **options)
    alignment = align(projections, normalize=normalize)
    return scale * (alignment + weight * distribution)


def sliced_wasserstein(h, prior, w, normalization="mean"):
    """Sliced Wasserstein distance: IP Algorithm 1.

    Vectors h and draws of the prior are [b, d]; w is [d, d'] with orthonormal
    columns. `paper` divides by d d', `mean` by b d'.
    """
    h, prior, w = (np.asarray(x, np.float64) for x in (h, prior, w))
    left, right = (np.sort(x @ w, axis=0) for x in (h, prior))
    rows = len(h) if normalization == "mean" else w.shape[0]
    return np.sum((left - right) ** 2) / (rows * w.shape[1])


def swd(
    projections,
    prior,
    w,
    *,
    weight=5.0,
    normalization="mean",
    normalize=False,
    scale=1.0,
):
    """IP Table 1, rows 2 to 4, for one draw of the prior [V B, P] and of W."""
    z = prepare(projections, normalize)
    distance = sliced_wasserstein(
        z.reshape(-1, z.shape[-1]), prior, w, normalization
    )
    return scale * (align(projections, normalize=normalize) + weight * distance)


# ---- Classes -----------------------------------------------------------------


def cross_entropy(logits, labels, *, label_smoothing=0.0, small_views=0):
    """Softmax cross entropy; of multi-hot labels sigmoid, mean over classes.

    Small views are classified as the others are.
    """
    del small_views
    x = np.array(logits, np.float64)
    labels = np.asarray(labels)
    batch, views, classes = x.shape
    values = np.zeros([batch, views])
    for i, v in np.ndindex(batch, views):
        if labels.ndim == 1:
            log_sum = log_sum_exp(x[i, v])
            for c in range(classes):
                target = (labels[i] == c) * (1 - label_smoothing)
                target += label_smoothing / classes
                values[i, v] += target * (log_sum - x[i, v, c])
        else:
            for c in range(classes):
                target = labels[i, c] * (1 - label_smoothing)
                target += label_smoothing / 2
                values[i, v] += softplus(x[i, v, c]) - target * x[i, v, c]
            values[i, v] /= classes
    return values, np.ones([batch, views], bool)


# ---- By name -----------------------------------------------------------------

# Of anchors, by the package's names. `swd_*` draw at random (see `swd`).
UNLABELLED = (ntxent, margin, nt_logistic, decoupled_ntxent)


def per_anchor(name, projections, labels=None, **options):
    """Values and counts [B, V] of the loss of anchors called `name`."""
    function = globals()[name]
    if function in UNLABELLED:
        return function(projections, **options)
    return function(projections, labels, **options)


def value(name, projections, labels=None, *, reduction="mean", **options):
    """The loss called `name`, as a float."""
    if name == "align_uniform":
        return align_uniform(projections, **options)
    return reduce(*per_anchor(name, projections, labels, **options), reduction)


def gradient(function, x):
    """The gradient of a scalar function of one array, by differences."""

    def of_row(row):
        return function(row.reshape(x.shape))

    row = np.ravel(x).astype(np.float64)
    return scipy.optimize.approx_fprime(row, of_row).reshape(x.shape)
