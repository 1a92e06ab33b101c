"""Similarities of this replica's anchors to the embeddings of all replicas.

Everything that compares embeddings walks blocks of the similarity matrix, so
that memory grows with the batch and not with its square:

- `scan` reads each anchor's row of similarities and has no gradient;
- `Rows` is a differentiable function of each row, which computes value and
  gradient in one walk over blocks of whole rows;
- `LogSumExp` is the row function that most losses share. On one replica the
  matrix is symmetric, and half of it is walked.

Loops are `tf.while_loop`s: the graph has the same size for any batch size.
"""

from tf_contrastive.losses.similarity.batch import (
    MASKED,
    Batch,
    Block,
    EmbeddingSet,
    count,
    gather,
    l2_normalize,
    log_sum_exp,
    masked_sum,
)
from tf_contrastive.losses.similarity.rows import (
    PerView,
    Rows,
    num_positives,
    positive_sums,
    rows_per_block,
    scan,
)
from tf_contrastive.losses.similarity.symmetric import LogSumExp

__all__ = [
    "MASKED",
    "Batch",
    "Block",
    "EmbeddingSet",
    "LogSumExp",
    "PerView",
    "Rows",
    "count",
    "gather",
    "l2_normalize",
    "log_sum_exp",
    "masked_sum",
    "num_positives",
    "positive_sums",
    "rows_per_block",
    "scan",
]
