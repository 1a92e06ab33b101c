"""Facts of a run from which the doctor's warnings follow."""

import dataclasses

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import advice, memory


def facts(options=None, **changes):
    """Facts of a run without any problem, with changes."""
    options = {
        "dataset": "cifar10",
        "image_size": 32,
        "stem": "cifar",
        "flip": True,
        "blur": False,
        "color_jitter_strength": 0.5,
        "warmup_epochs": 10.0,
        "precision": "float32",
        "loss": "ntxent",
        **(options or {}),
    }
    run = fields.replace(Pretrain(), **options)
    about = info(50_000, run.data.dataset)
    found = advice.Facts(
        run=run,
        info=about,
        replicas=1,
        steps_per_epoch=50_000 // run.schedule.batch_size,
        peak_learning_rate=0.3,
        positives=51.0,
        memory=memory.Memory(1, 1, 1, 1, 1, 1, 2**30),
        process_memory=None,
        available_memory=2**34,
        class_sizes=np.full([10], 5_000),
        input_speed=2000.0,
        step_speed=1000.0,
    )
    return dataclasses.replace(found, **changes)


def info(examples, name="cifar10"):
    return datasets.Info(name, "train", examples, 10, (32, 32, 3))
