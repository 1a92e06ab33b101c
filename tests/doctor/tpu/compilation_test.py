"""Compilation for a TPU that is not there."""

import json
import os
import shutil
import sys

import cover
import pytest
import tensorflow as tf
from processes import ROOT
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from lab.benchmarks import step as of_lab
from lab.commands import benchmark
from lab.commands.benchmark import Benchmark
from tf_contrastive.base import errors
from tf_contrastive.commands import doctor as command
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.doctor import tpu
from tf_contrastive.doctor.tpu import compilation, compiler, lowering
from tools import tpu as table

pytestmark = [pytest.mark.usefixtures("small_encoder"), pytest.mark.early]

_SMALL = {
    "dataset": "digits",
    "image_size": 8,
    "encoder": "resnet10",
    "width": 0.0625,
    "projection_output": 16,
    "batch_size": 64,
    "compile_for": "v4:2x2x1",
}


def _inspect(options):
    chosen = options.compilation
    return tpu.inspect(options, chosen.compile_for, chosen.compile_python)


def _options(**options):
    return fields.replace(Doctor(), **(_SMALL | options))


# An interpreter that compiles nothing: "step 8" is a program for 8 images, of
# which 75 fit.
_FAKE = """#!PYTHON
import json, pathlib, sys
if sys.argv[1:3] == ["-P", "-c"]:
    sys.exit()
script, hlo, topology, cores, mode = sys.argv[1:]
name, images = open(hlo).read().split()
images = int(images)
with open(pathlib.Path(__file__).with_name("log"), "a") as log:
    log.write(f"{name} {images} {topology} {cores} {mode}\\n")
need = 2**30 + 2**29 // 5 * images
facts = dict(error=f"Used {need / 2**30:.3f}G of 8.5G hbm.")
if need <= 8.5 * 2**30:
    times = 5 if name == "step" else 4
    facts = dict(argument=2**30, temp=need - 2**30, memory=need)
    facts |= dict(flops=2.75e8 * images * times, bytes=1e6)
    facts |= dict(collectives=3, collectives_before=9, collective_bytes=2**21)
    facts |= dict(float64=False, dynamic_shapes=False, loops=2)
print(json.dumps(facts))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The fake compiler and its log, with steps that are not lowered."""

    class Step:
        title = "step"
        encoder = tf.keras.layers.ReLU()

        def __init__(self, *_):
            pass

        def lower(self, images):
            return f"step {images}".encode()

        def lower_function(self, function, images):
            return f"encoder {images}".encode()

    monkeypatch.setattr(lowering, "Step", Step)
    monkeypatch.setattr(tpu, "INPUT_SECONDS", 0.1)
    path = tmp_path / "python"
    path.write_text(_FAKE.replace("PYTHON", sys.executable))
    path.chmod(0o755)
    return str(path), tmp_path / "log"


@pytest.mark.parametrize(
    "error",
    [
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 27.23G"
        " of 15.25G hbm. Exceeded hbm capacity by 11.98G.",
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on"
        " HBM, the total memory required for HLO temporaries (27.23G) exceeds"
        " available HBM (15.25G). HLO module: step.",
    ],
)
def test_the_memory_of_a_program_that_does_not_fit_is_read(error):
    gib = 2**30
    assert compilation.needed({"error": error}) == (27.23 * gib, 15.25 * gib)


def test_memory_and_speed_are_told(fake, capsys, tmp_path):
    python, log = fake
    options = _options(compile_python=python, workdir=str(tmp_path / "run"))
    assert command.run(options) == 0
    report = json.loads((tmp_path / "run" / "doctor.json").read_text())
    memory = report["memory_per_core"]
    assert memory["images_per_core"] == 8 and memory["fits"] == "yes"
    # 1 GiB and 0.1 GiB an image.
    assert memory["memory_mib"] == round(1.8 * 1024)
    # Half a v4 chip makes 137.5 teraflops: 8 images in 80 us; one host.
    assert report["step_of_a_core"]["milliseconds_by_flops"] == 0.08
    given, chosen = report["input"], report["topology"]
    assert given["images_per_second_and_host"] == 800_000
    # Two views of three channels, in float32.
    size = 2 * chosen["image_size"] ** 2 * 3 * 4
    assert chosen["wire_dtype"] == "float32"
    assert given["megabytes_per_second_and_host"] == round(0.8 * size)
    assert "memory_mib" in capsys.readouterr().out
    assert log.read_text() == "step 8 v4:2x2x1 8 whole\n"
    report = _inspect(fields.replace(options, batch_size=1024))
    assert report["memory_per_core"]["fits"] == "no"
    assert report["memory_per_core"]["available_mib"] == 8704
    assert "step_of_a_core" not in report


def test_absent_data_are_assumed(fake, tmp_path):
    python, _ = fake
    absent = {"dataset": "imagenet2012", "data_dir": str(tmp_path)}
    options = _options(compile_python=python, image_size=None, **absent)
    report = _inspect(options)
    assert report["topology"]["image_size"] == 224
    assert report["topology"]["precision"] == "mixed_bfloat16"
    assert report["input"]["cpu_cores_per_host"] is None


def test_the_step_is_compared_with_the_encoder_alone(fake, tmp_path, capsys):
    python, log = fake
    words = "--dataset=digits --encoder=resnet10 --batch_size=64"
    output = tmp_path / "step.json"
    options = fields.replace(
        Benchmark(),
        benchmark="step",
        run_flags=words,
        precisions="mixed_bfloat16",
        compile_for="v4:2x2x1",
        compile_python=python,
        output=str(output),
    )
    assert benchmark.run(options) == 0
    (row,) = json.loads(output.read_text())["results"]
    assert row["images_per_core"] == 8 and row["teraflops"] == 0.011
    assert row["flops_ratio"] == 1.25
    assert row["bytes_ratio"] == row["memory_ratio"] == 1.0
    # The step on all cores, the encoder on one of them.
    assert log.read_text().splitlines() == [
        "step 8 v4:2x2x1 8 whole",
        "encoder 8 v4:2x2x1 1 whole",
    ]
    assert "bytes / bare" in capsys.readouterr().out
    with pytest.raises(errors.UserError, match="batch_size in run_flags"):
        benchmark.run(
            fields.replace(options, run_flags=f"{words} --batch_size=1024")
        )


def test_topologies():
    for name, expected in (("v4:2x2x4", (32, 4)), ("v5e:4x4", (16, 2))):
        found = compilation.topology(name)
        assert (found.cores, found.hosts) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_for": "v9:2x2"}, "v9:2x2 is no topology"),
        ({"compile_python": "/nowhere/python"}, "no /nowhere/python"),
        # An interpreter without jax.
        ({"compile_python": shutil.which("false")}, "launch/install --tpu"),
        ({"batch_size": 60}, "not divisible by 8 replicas"),
    ],
)
def test_what_cannot_be_compiled_is_told(options, message, fake):
    python, _ = fake
    options = {"compile_python": python} | options
    with pytest.raises(errors.UserError, match=message):
        _inspect(_options(**options))


@pytest.mark.slow
def test_the_step_of_several_cores_has_their_collectives(tmp_path):
    run, _ = compilation.prepare(_options(loss="supcon"), 4)
    step = lowering.Step(run)
    program = step.lower(2)
    # Of each gradient, of BatchNorm's statistics, and of the loss's embeddings.
    assert program.count(compiler.ALL_REDUCE.encode()) > 20
    assert program.count(compiler.REPLICA_ID.encode()) > 0
    # The encoder alone has Keras' own normalization, over its core's batch.
    encoder = of_lab.with_keras_normalization(step.encoder)
    bare = step.lower_function(lambda x: of_lab.both_passes(encoder, x), 2)
    assert b"Marker" not in bare and len(bare) < len(program)
    assert b"batch-norm-grad" in bare
    assert b"batch-norm-grad" not in program


def test_markers_become_collectives():
    kind = "tensor<2x3xf32>"
    text = f"""
%1 = stablehlo.custom_call @AllReduceMarker(%0) {{x = ""}} : ({kind}) -> {kind}
%2 = mhlo.copy %1 : {kind}
%3 = stablehlo.custom_call @ReplicaIdMarker() {{x = ""}} : () -> tensor<ui32>
"""
    made, count = compiler.with_collectives(text, 4)
    assert count == 1
    assert "Marker" not in made and "mhlo" not in made
    assert "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>" in made
    assert "stablehlo.add %a, %b : tensor<f32>" in made
    assert "%3 = stablehlo.replica_id : tensor<ui32>" in made


def test_of_a_condition_only_the_cheapest_branch_counts():
    program = """
%far (p: (f32[3], bf16[8,64])) -> f32[3] {
  %p = (f32[3]{0:T(128)S(3)}, bf16[8,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %x = bf16[8,64]{1,0:T(8,128)(2,1)} get-tuple-element(%p), index=1
  %sums = (f32[3]{0:T(128)}, s64[]) fusion(%x, %p)
  ROOT %out = f32[3] get-tuple-element(%sums), index=0
}
%near (q: f32[3]) -> f32[3] {
  %q = f32[3]{0:T(128)} parameter(0)
  ROOT %copy = f32[3]{0:T(128)} copy(%q)
}
ENTRY %main (x: f32[2]) -> f32[2] {
  %c = f32[2] fusion(%x)
  %d = f32[3] conditional(%i, %t, %q), branch_computations={%far, %near}
}
"""
    far = 2 * 8 * 64 + (4 * 3 + 2 * 8 * 64) + (4 * 3 + 8)
    assert compiler.untaken_bytes(program) == far - 2 * 4 * 3


def test_the_table_of_tpus_is_that_of_its_data():
    assert table.DOCUMENT.read_text() == table.document(table.data()), (
        "run `python tools/tpu.py`"
    )


_RECIPES = {
    name: (fields.replace(run, encoder="resnet10", width=1.0), images)
    for name, (run, images) in table.recipes().items()
}


def _forms():
    """Four recipes with most values of what a step's form depends on."""
    # Of each form, the one with the largest batch per core.
    forms = {
        table.form(run, 0): name
        for name, (run, _) in sorted(_RECIPES.items(), key=lambda x: x[1][1])
    }
    return cover.cover({name: form for form, name in forms.items()}, 4)


_ENVIRONMENT = ROOT / ".venv-tpu/bin/python"
_needs_compiler = pytest.mark.skipif(
    not os.access(_ENVIRONMENT, os.X_OK), reason=".venv-tpu is not installed"
)


def _check_instructions(program):
    module = hlo_pb2.HloModuleProto.FromString(program)
    instructions = [i for c in module.computations for i in c.instructions]
    assert compiler.ALL_REDUCE in {i.custom_call_target for i in instructions}
    for instruction in instructions:
        shape = instruction.shape
        assert shape.element_type != xla_data_pb2.F64, instruction
        assert not any(shape.is_dynamic_dimension), instruction


# All, with their own encoders, are compiled by tools/release_check --compile.
@pytest.mark.slow
@pytest.mark.parametrize("name", _forms())
def test_a_recipe_has_a_step_for_tpus(name):
    run, images = _RECIPES[name]
    run = fields.replace(run, batch_size=8 * images)
    program = lowering.Step(compilation.prepare(run, 8)[0]).lower(images)
    _check_instructions(program)
    if not os.access(_ENVIRONMENT, os.X_OK):
        return  # The test below is skipped, and says why.
    target = compilation.topology("v4:2x2x1")
    facts = compilation.Compiler(target, str(_ENVIRONMENT)).compile(
        program, name, compiler.PLAN
    )
    assert compilation.needed(facts)[1] is None
    assert not facts["float64"] and not facts["dynamic_shapes"]


@pytest.mark.slow
@_needs_compiler
def test_a_step_compiles_for_a_tpu():
    # Of smaller tensors, padding is most of the bytes, and is counted in two
    # ways.
    options = _options(
        **{"image_size": 32, "width": 1.0, "batch_size": 512},
        compile_python=str(_ENVIRONMENT),
    )
    target = compilation.topology(options.compilation.compile_for)
    compiler_ = compilation.Compiler(target, str(_ENVIRONMENT))
    run, _ = compilation.prepare(options, target.cores)
    program = lowering.Step(run).lower(64)
    whole, plan = (
        compiler_.compile(program, "step", mode)
        for mode in (compiler.WHOLE, compiler.PLAN)
    )
    assert compilation.needed(whole)[1] is None
    assert not whole["float64"] and not whole["dynamic_shapes"]
    assert 0 < whole["collectives"] < whole["collectives_before"]
    assert whole["generated_code"]
    # The same program, left before its code is generated.
    for name in plan.keys() - {"memory", "bytes"}:
        assert plan[name] == whole[name], name
    assert plan["memory"] == pytest.approx(whole["memory"], abs=2**20)
    assert plan["bytes"] == pytest.approx(whole["bytes"], rel=0.05)


@pytest.mark.slow
@_needs_compiler
def test_the_operations_of_small_views_are_counted():
    target = compilation.topology("v5e:1x1")
    compiler_ = compilation.Compiler(target, str(_ENVIRONMENT))
    found = []
    for count in (0, 6):
        sizes = {"image_size": 32, "small_image_size": 16, "width": 0.5}
        options = _options(loss="ntxent", small_views=count, **sizes)
        run, _ = compilation.prepare(options, target.cores)
        program = lowering.Step(run).lower(8)
        facts = compiler_.compile(program, "step", compiler.PLAN)
        found.append(facts["flops"])
    # Two large views, and six of a quarter of the pixels.
    assert found[1] / found[0] == pytest.approx(3.5 / 2, rel=0.05)
