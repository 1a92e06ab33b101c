"""Writes docs/tpu.md: what training steps take of TPUs, by their compiler.

Use: python tools/tpu.py [--minutes=N]
     python tools/tpu.py --recipes [--whole]

It needs no TPU, but `launch/install --tpu-compile`. A row takes minutes. Rows
are kept in docs/tpu.json, and only those that are missing are compiled: delete
what is out of date. --minutes: begin no row after that time.

--recipes: instead compile the step of every flagfile of configs/ for TPUs, for
8 cores with the recipe's batch per core, and exit with 1 if one fails or does
not fit. Flagfiles whose steps have the same form share one. --whole: generate
code, too, which takes 30 times as long.
"""

import argparse
import json
import multiprocessing
import pathlib
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from tf_contrastive import flags
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor.tpu.compiler import PLAN, WHOLE

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
DATA = ROOT / "docs" / "tpu.json"
DOCUMENT = ROOT / "docs" / "tpu.md"
RECIPE = "simclr_imagenet"
# Of a core, in that recipe: 4096 on 128 cores.
IMAGES = 32
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v6e": "v6e:2x2"}
ENCODERS = [
    *((f"resnet{n}", width) for width in (1, 2) for n in (50, 101, 200)),
    ("vit_s16", 1),
]
# MoCo v3's optimizer of transformers, instead of the recipe's LARS.
_OF_VIT = {"optimizer": "adamw", "learning_rate": 1.5e-4, "weight_decay": 0.1}
_INTRODUCTION = """\
# Memory and work of a training step on TPUs

Estimates of the TPU's own compiler for SimCLR's training step
(`configs/simclr_imagenet.flags`; transformers with AdamW): 224 pixels,
{images} images of two views per core, mixed_bfloat16, colours changed on the
device. No TPU was used, and nothing was measured. `python tools/tpu.py` writes
this page; [`doctor --compile_for`](guide/imagenet_tpu.md#before-the-first-run)
compiles a run of your own.

A program is for one core, without collectives. A core of v4 is half a
chip; one of v5e or v6e is a chip. The memory excludes the code: 87 MiB for
ResNet-50. The bytes exclude the branch of batch normalization for the first
steps. Milliseconds are lower bounds, by the chip's published operations and
bytes per second; images per second follow from the longer of them.
"""
# Options on which the form of a step depends.
_FORM = (
    "encoder",
    "width",
    "stem",
    "depth",
    "heads",
    "pooling",
    "views",
    "image_size",
    "augmentation",
    "color_jitter_style",
    "blur",
    "mixup_alpha",
    "cutmix_alpha",
    "ablation_branch",
    "randaugment_layers",
    "stacked_randaugment_order",
    "projection",
    "projection_layers",
    "projection_hidden",
    "projection_output",
    "projection_batch_norm",
    "l2_normalize_features",
    "loss",
    "grad_cache_chunks",
    "queue_size",
    "optimizer",
    "precision",
    "extra_channels",
    "online_knn_size",
    "probe",
    "wire_dtype",
)


# ---- The table ---------------------------------------------------------------


def document(rows: dict[str, dict[str, Any]]) -> str:
    """Returns the text of docs/tpu.md: `rows` of docs/tpu.json."""
    from tf_contrastive.doctor.tpu import compilation

    lines = [
        _INTRODUCTION.format(images=IMAGES),
        "| encoder | width | chip | MiB of a core | of | Tflop | GB |"
        " ms by flops | ms by bytes | images/s of a core |",
        "|---" * 10 + "|",
    ]
    missing = []
    for encoder, width, name in _cases():
        row = rows.get(_key(encoder, width, name))
        if row is None:
            missing.append(f"{encoder} {width}x on {name}")
            continue
        chip = compilation.CHIPS[name]
        cells = [
            encoder,
            f"{width}x",
            name,
            f"{row['memory'] / 2**20:,.0f}",
        ]
        cells.append(f"{chip.memory / chip.cores / 2**20:,.0f}")
        if "flops" in row:
            seconds = (
                row["flops"] / (chip.flops / chip.cores),
                row["bytes"] / (chip.bytes / chip.cores),
            )
            cells += [f"{row['flops'] / 1e12:.2f}", f"{row['bytes'] / 1e9:.1f}"]
            cells += [f"{1000 * s:.1f}" for s in seconds]
            cells.append(f"{IMAGES / max(seconds):,.0f}")
        else:  # It does not fit.
            cells += ["-"] * 5
        lines.append(f"| {' | '.join(cells)} |")
    if missing:
        lines += ["", f"Not compiled yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _cases() -> list[tuple[str, int, str]]:
    return [(e, width, name) for e, width in ENCODERS for name in TOPOLOGIES]


def _key(encoder: str, width: int, name: str) -> str:
    return f"{encoder} {width}x {name}"


def data() -> dict[str, dict[str, Any]]:
    """Returns the rows of docs/tpu.json."""
    return json.loads(DATA.read_text("utf-8")) if DATA.exists() else {}


def _write_table(minutes: float) -> bool:
    end = time.monotonic() + 60 * minutes
    for encoder, width in ENCODERS:
        rows = data()
        names = [n for n in TOPOLOGIES if _key(encoder, width, n) not in rows]
        if not names or time.monotonic() > end:
            continue
        if not in_process(_write_rows, encoder, width, names):
            return False
    return True


def _write_rows(encoder: str, width: int, names: list[str]) -> None:
    from tf_contrastive.doctor.tpu import compilation, lowering

    run = fields.replace(
        _parse(RECIPE), encoder=encoder, width=float(width), batch_size=IMAGES
    )
    if encoder.startswith("vit"):
        run = fields.replace(run, **_OF_VIT)
    run, _ = compilation.prepare(run, 1)
    step = lowering.Step(run)
    program = step.lower(IMAGES)
    for name in names:
        target = compilation.topology(TOPOLOGIES[name])
        compiler = compilation.Compiler(target, cores=1)
        facts = compiler.compile(program, step.title, PLAN)
        row = {n: facts[n] for n in ("flops", "bytes") if n in facts}
        row["memory"] = compilation.needed(facts)[0]
        _write(data() | {_key(encoder, width, name): row})


def _write(rows: dict[str, dict[str, Any]]) -> None:
    DATA.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    DOCUMENT.write_text(document(rows), "utf-8")


# ---- The recipes -------------------------------------------------------------


def _parse(name: str) -> Pretrain:
    path = CONFIGS / f"{name}.flags"
    run = flags.parse(Pretrain, [f"--flagfile={path}", "--workdir=w"])
    run.validate()
    return run


def recipes() -> dict[str, tuple[Pretrain, int]]:
    """Returns the recipes for TPUs: name -> (options, images per core)."""
    result = {}
    for path in sorted(CONFIGS.glob("*.flags")):
        text = path.read_text("utf-8")
        trained = re.search(r"^# Command: .* pretrain ", text, re.MULTILINE)
        cores = re.search(r"^# Hardware: +(\d+) .*TPU", text, re.MULTILINE)
        if trained and cores:
            run = _parse(path.stem)
            result[path.stem] = run, run.schedule.batch_size // int(cores[1])
    return result


def form(run: Pretrain, images: int) -> frozenset[tuple[str, str]]:
    """Returns what the form of a step depends on: names and values."""
    values = fields.values(run)
    options = {
        f"loss's {name}": value
        for name, value in run.loss.arguments().items()
        if name != "temperature"
    }
    # Options of components that the run does not have are None.
    parts = {name: values.get(name) for name in _FORM} | options
    return frozenset(
        (n, repr(v)) for n, v in (parts | {"images": images}).items()
    )


def distinct(
    runs: dict[str, tuple[Pretrain, int]],
) -> dict[str, tuple[Pretrain, int]]:
    """Returns one of the recipes for each form of a step."""
    forms = {form(run, images): name for name, (run, images) in runs.items()}
    return {name: runs[name] for name in sorted(forms.values())}


def _compile_recipes(whole: bool) -> bool:
    mode = WHOLE if whole else PLAN
    results = [
        in_process(_compile_recipe, name, run, images, mode)
        for name, (run, images) in distinct(recipes()).items()
    ]
    return all(results)


def _compile_recipe(name: str, run: Pretrain, images: int, mode: str) -> None:
    """Prints what a recipe's step takes; exits with 1 if something is wrong."""
    from tf_contrastive.doctor.tpu import compilation, lowering

    target = compilation.topology(TOPOLOGIES["v4"])
    # A learning rate belongs to the recipe's own number of cores.
    run = fields.replace(run, batch_size=images * target.cores)
    run, _ = compilation.prepare(run, target.cores)
    compiler = compilation.Compiler(target)
    step = lowering.Step(run)
    facts = compiler.compile(step.lower(images), step.title, mode)
    size, limit = compilation.needed(facts)
    wrong = [n for n in ("float64", "dynamic_shapes") if facts.get(n)]
    if limit is not None:
        wrong.append("does not fit")
    print(
        f"{name}: {images} images per core, {size / 2**20:,.0f} MiB:"
        f" {', '.join(wrong) or 'compiles and fits'}",
        flush=True,
    )
    if wrong:
        sys.exit(1)


# ---- The script --------------------------------------------------------------


def in_process(function: Callable[..., None], *arguments: Any) -> bool:
    """Calls a function in a process of its own; returns whether it succeeded.

    TensorFlow frees no graph before its process ends: many steps take 10 GB.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_configured, args=(function, *arguments)
    )
    process.start()
    process.join()
    return process.exitcode == 0


def _configured(function: Callable[..., None], *arguments: Any) -> None:
    terminal.configure("normal")
    try:
        function(*arguments)
    except errors.UserError as error:
        terminal.error(str(error))
        sys.exit(1)


def main() -> int:
    """Runs the script; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--recipes", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if options.recipes:
        passed = _compile_recipes(options.whole)
    else:
        passed = _write_table(options.minutes)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
