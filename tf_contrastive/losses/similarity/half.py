"""Half of a symmetric matrix of exponentials."""

import tensorflow as tf

from tf_contrastive.losses.similarity.batch import shape
from tf_contrastive.losses.similarity.rows import join, split

_SQUARE_SIDE = 1024
# Exponentials (64 MiB) that are kept for the gradient rather than made again.
_KEPT = 2**24


class Half:
    """The blocks E_ij, j >= i, of E = exp(z z') without its diagonal.

    Args:
      z: float32 [n, P].
      side: rows and columns of a block; 0: automatic.
      with_diagonal: E with its diagonal.
    """

    def __init__(self, z: tf.Tensor, side: int, with_diagonal: bool) -> None:
        self._total = shape(z)[0]
        self._side = side or self._automatic_side()
        self._with_diagonal = with_diagonal
        self._z = split(z, self._side)  # [blocks, side, P]
        self._blocks = shape(self._z)[0]

    def _automatic_side(self) -> int | tf.Tensor:
        # At least 2 blocks, of one size, so that little is padded.
        blocks = -(-self._total // _SQUARE_SIDE)
        if isinstance(blocks, int):
            blocks = max(blocks, 2)
        return -(-self._total // blocks)

    def row_sums(self) -> tuple[tf.Tensor, tuple[tf.TensorArray, ...]]:
        """The sums of E's rows, [n], and the blocks, if they are few."""
        kept = ()
        pairs = self._blocks * (self._blocks + 1) // 2
        if isinstance(pairs, int) and pairs * self._side**2 <= _KEPT:
            block = [self._side, self._side]
            kept = (tf.TensorArray(tf.float32, pairs, element_shape=block),)
        ones = tf.ones([self._side, 1])

        def add(k, i, j, sums, kept):
            e = self._exponentials(i, j)
            kept = tuple(array.write(k, e) for array in kept)
            sums = _add_row(sums, i, tf.matmul(e, ones)[:, 0])

            def below():
                return _add_row(
                    sums, j, tf.matmul(e, ones, transpose_a=True)[:, 0]
                )

            return tf.cond(tf.equal(i, j), lambda: sums, below), kept

        sums = tf.zeros(tf.shape(self._z)[:2])
        sums, kept = self._walk(add, sums, kept)
        return join(sums, self._total), kept

    def product(
        self, shares: tf.Tensor, kept: tuple[tf.TensorArray, ...]
    ) -> tf.Tensor:
        """(E * (s + s')) z, for s [n] repeated over columns, [n, P]."""
        z, shares = self._z, split(shares, self._side)

        def add(k, i, j, product, kept):
            e = kept[0].read(k) if kept else self._exponentials(i, j)
            w = e * (shares[i][:, tf.newaxis] + shares[j])
            product = _add_row(product, i, tf.matmul(w, z[j]))

            def below():
                return _add_row(
                    product, j, tf.matmul(w, z[i], transpose_a=True)
                )

            return tf.cond(tf.equal(i, j), lambda: product, below), kept

        product, _ = self._walk(add, tf.zeros_like(z), kept)
        return join(product, self._total)

    def _walk(self, add, start, kept):
        """Loops over j >= i, as block k: `add` gets (k, i, j, so far, kept)."""

        def one_block(k, i, j, so_far, kept):
            so_far, kept = add(k, i, j, so_far, kept)
            end = tf.equal(j + 1, self._blocks)
            i = tf.where(end, i + 1, i)
            return k + 1, i, tf.where(end, i, j + 1), so_far, kept

        return tf.while_loop(
            lambda k, i, *_: i < self._blocks, one_block, (0, 0, 0, start, kept)
        )[-2:]

    def _exponentials(self, i: tf.Tensor, j: tf.Tensor) -> tf.Tensor:
        """E_ij, with 0 where there is padding."""
        e = tf.exp(tf.matmul(self._z[i], self._z[j], transpose_b=True))
        plain = tf.not_equal(j, self._blocks - 1)
        if not self._with_diagonal:
            plain &= tf.not_equal(i, j)
        return tf.cond(plain, lambda: e, lambda: self._masked(e, i, j))

    def _masked(self, e, i, j):
        numbers = tf.range(self._side)
        rows = (i * self._side + numbers)[:, tf.newaxis]
        columns = j * self._side + numbers
        keep = (rows < self._total) & (columns < self._total)
        if not self._with_diagonal:
            keep &= rows != columns
        return tf.where(keep, e, 0.0)


def _add_row(x: tf.Tensor, row: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds `values` to x[row]."""
    return tf.tensor_scatter_nd_add(x, [[row]], values[tf.newaxis])
