"""Similarities of this replica's anchors to the embeddings of all replicas.

Layer 2. Everything that compares embeddings walks blocks of the similarity
matrix, so that memory grows with the batch and not with its square:

- `scan` reads each anchor's row of similarities and has no gradient;
- `Rows` is a differentiable function of each row: value and gradient are made
  in one walk over blocks of whole rows;
- `LogSumExp` is the row function that most losses share. On one replica the
  matrix is symmetric, and half of it is walked.

Loops are `tf.while_loop`s: the graph has one size at any batch size.
"""

from tf_contrastive.losses.similarity.batch import (
    Batch,
    Side,
    gather,
    l2_normalize,
)
from tf_contrastive.losses.similarity.blocks import (
    MASKED,
    Block,
    count,
    log_sum_exp,
    masked_sum,
)
from tf_contrastive.losses.similarity.log_sums import LogSumExp
from tf_contrastive.losses.similarity.positives import (
    num_positives,
    positive_sums,
)
from tf_contrastive.losses.similarity.rows import (
    PerView,
    Rows,
    rows_per_block,
    scan,
)

__all__ = [
    "MASKED",
    "Batch",
    "Block",
    "LogSumExp",
    "PerView",
    "Rows",
    "Side",
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
