"""Numbers that the machine does not hold: refused before the first step.

Those of losses, optimizers and schedules are in `components_test`.
"""

import types

import psutil
import pytest

from tf_contrastive import schedules
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain, check_memory, resolve
from tf_contrastive.config.runtime import Machine
from tf_contrastive.views.mixup_cutmix import Mixing


@pytest.mark.parametrize("value", [1e300, 1e-40, float("nan")])
def test_mixing_takes_no_such_number(value):
    with pytest.raises(ValueError):
        Mixing(10, mixup_alpha=value)


def test_a_learning_rate_that_overflows_with_the_batch_is_refused():
    def peak(batch_size):
        options = {"batch_size": batch_size, "steps_per_epoch": 1, "epochs": 1}
        rate = schedules.build("constant", base_learning_rate=1e38, **options)
        return float(rate(0))

    assert peak(512) == pytest.approx(2e38)
    with pytest.raises(errors.UserError, match="peak="):
        peak(1024)


def _fit(monkeypatch, gib, **options):
    """Checks a run of 65,536 views of 8 x 8 x 3 floats on such a machine."""
    memory = types.SimpleNamespace(total=int(gib * 2**30))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    options = {"image_size": 8, "batch_size": 512, "views": 128} | options
    run = fields.replace(Pretrain(), dataset="digits", **options)
    run = resolve(run, dataset="digits", image_shape=(8, 8, 3))
    check_memory(run, Machine(), 1437, (8, 8, 3))


@pytest.mark.parametrize(
    "option,value", [("batch_size", 1024), ("image_size", 12), ("views", 256)]
)
def test_a_batch_that_does_not_fit_into_memory_is_refused(
    option, value, monkeypatch
):
    _fit(monkeypatch, 0.047)
    _fit(monkeypatch, 0.11, **{option: value})
    with pytest.raises(errors.UserError, match=f"`{option}`"):
        _fit(monkeypatch, 0.09, **{option: value})


def test_images_that_do_not_fit_are_not_kept(monkeypatch):
    # 1,437 digits of 8 x 8 x 3 bytes.
    small = {"batch_size": 4, "views": 2}
    _fit(monkeypatch, 2.7e-4, cache="memory", **small)
    _fit(monkeypatch, 2.5e-4, cache="auto", **small)
    with pytest.raises(errors.UserError, match="cache=memory"):
        _fit(monkeypatch, 2.5e-4, cache="memory", **small)
