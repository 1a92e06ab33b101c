"""Numbers that the machine does not hold: refused before the first step."""

import typing

import pytest

from tf_contrastive import (
    __main__,
    errors,
    flags,
    losses,
    optimizers,
    schedules,
)
from tf_contrastive.config import fields
from tf_contrastive.views.mixing import Mixing

# Infinity or 0 in TensorFlow, or none.
_NOT_FLOAT32 = ("3.5e38", "1.1e-38", "nan", "inf")


def _options(kind):
    for command in __main__.COMMANDS.values():
        for _, field, _ in fields.fields(command()):
            if kind in (field.type, *typing.get_args(field.type)):
                yield command, field.name


def _refused(command, name, value):
    required = [
        f"--{field.name}=/x"
        for _, field, _ in fields.fields(command())
        if field.metadata["required"]
    ]
    with pytest.raises(errors.UserError, match=f"^{name}="):
        flags.parse(command, [*required, f"--{name}={value}"])


def test_no_command_takes_a_number_that_float32_does_not_hold():
    options = list(_options(float))
    assert len(options) > 60
    for command, name in options:
        for value in _NOT_FLOAT32:
            _refused(command, name, value)


def test_no_command_takes_a_count_beyond_32_bits():
    options = list(_options(int))
    assert len(options) > 100
    for command, name in options:
        _refused(command, name, 2**32)
        _refused(command, name, 10**21)


def test_lists_hold_only_such_numbers():
    pretrain, evaluate, benchmark = (
        __main__.COMMANDS[name]
        for name in ("pretrain", "evaluate", "benchmark")
    )
    for command, name, value in (
        (pretrain, "boundaries", "30,1e300"),
        (pretrain, "profile_steps", "1,2147483648"),
        (pretrain, "standardize", "0.5,0.5,0.5/1e-40,0.5,0.5"),
        (pretrain, "standardize", "0.5,0.5,1e39/0.5,0.5,0.5"),
        (evaluate, "knn_k", "2147483648"),
        (evaluate, "linear_learning_rates", "0.1,1e-300"),
        (evaluate, "finetune_fractions", "1e-50,1"),
        (evaluate, "transfer_weight_decays", "0,1e-60"),
        (benchmark, "sizes", "4294967296"),
    ):
        _refused(command, name, value)


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
    with pytest.raises(errors.UserError, match="batch_size=1024"):
        peak(1024)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
