"""Numbers that the machine does not hold: refused before the first step."""

import pytest

from tf_contrastive import losses, optimizers, schedules
from tf_contrastive.base import errors
from tf_contrastive.views.mixup_cutmix import Mixing


@pytest.mark.parametrize("value", [1e300, 1e-40, float("nan")])
def test_python_takes_no_such_number_either(value):
    def schedule(**options):
        return schedules.build(
            **{
                "base_learning_rate": 0.1,
                "batch_size": 256,
                "steps_per_epoch": 1,
                "epochs": 4,
                "warmup_epochs": 0,
                **options,
            }
        )

    for make in (
        lambda: losses.build("supcon", temperature=value),
        lambda: losses.NTXent(temperature=value),
        lambda: losses.build("align_uniform", weight=value),
        lambda: optimizers.build("sgd", learning_rate=value),
        lambda: optimizers.LARS(0.1, weight_decay=value),
        lambda: optimizers.build("adam", learning_rate=0.1, epsilon=value),
        lambda: schedule(base_learning_rate=value),
        lambda: schedule(floor=value),
        lambda: schedules.Cosine(value, steps_per_epoch=1, epochs=2),
        lambda: schedule(name="exponential", decay_epochs=value),
        lambda: schedule(name="piecewise", boundaries=(1.0, value)),
        lambda: Mixing(10, mixup_alpha=value),
    ):
        with pytest.raises(ValueError):
            make()


def test_a_learning_rate_that_overflows_with_the_batch_is_refused():
    def peak(batch_size):
        rate = schedules.build(
            "constant",
            base_learning_rate=1e38,
            batch_size=batch_size,
            steps_per_epoch=1,
            epochs=1,
        )
        return float(rate(0))

    assert peak(512) == pytest.approx(2e38)
    with pytest.raises(errors.UserError, match="peak="):
        peak(1024)
