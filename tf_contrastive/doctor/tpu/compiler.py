"""Compiles HLO with the TPU's own compiler, without a TPU.

A program of its own: `python compiler.py HLO TOPOLOGY CORES MODE` prints one
line of JSON. It needs jax and libtpu, which must not meet TensorFlow in one
process, and imports nothing of this package.
"""

import collections
import glob
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent import futures
from typing import Any

# How far a program is compiled. PLAN stops once memory is assigned: generating
# code takes 30 times as long, and changes neither the operations nor their
# memory.
WHOLE, PLAN = "whole", "plan"

# Targets of custom calls that stand for what CPUs have no kernels for.
ALL_REDUCE, REPLICA_ID = "AllReduceMarker", "ReplicaIdMarker"

_TENSOR = r"tensor<[^>]*>"


def _all_reduce(cores: int) -> Callable[[re.Match], str]:
    """Returns match of a marker -> the all-reduce that it stands for."""
    groups = ", ".join(map(str, range(cores)))

    def text(match: re.Match) -> str:
        result, operand, kind = match.groups()
        scalar = f"tensor<{kind[7:-1].split('x')[-1]}>"
        return (
            f'{result} = "stablehlo.all_reduce"({operand}) ({{\n'
            f"^bb0(%a: {scalar}, %b: {scalar}):\n"
            f"%s = stablehlo.add %a, %b : {scalar}\n"
            f"stablehlo.return %s : {scalar}\n}}) {{replica_groups ="
            f" dense<[[{groups}]]> : tensor<1x{cores}xi64>}} :"
            f" ({kind}) -> {kind}"
        )

    return text


def with_collectives(text: str, cores: int) -> tuple[str, int]:
    """Returns StableHLO with all-reduces for markers, and their number."""
    # TensorFlow's results are copies, which StableHLO does not know.
    for copy in (
        rf"mhlo\.copy (%\S+) : ({_TENSOR})",
        rf'"mhlo\.copy"\((%\S+)\)[^:]* : \(({_TENSOR})\) -> {_TENSOR}',
    ):
        reshape = r"stablehlo.reshape \1 : (\2) -> \2"
        text = re.sub(copy, reshape, text)
    text, count = re.subn(
        rf"(%\S+) = stablehlo\.custom_call @{ALL_REDUCE}\((%\S+)\)[^:]* :"
        rf" \(({_TENSOR})\) -> {_TENSOR}",
        _all_reduce(cores),
        text,
    )
    text = re.sub(
        rf"(%\S+) = stablehlo\.custom_call @{REPLICA_ID}\(\)[^:]* : \(\) ->"
        r" tensor<ui32>",
        r"\1 = stablehlo.replica_id : tensor<ui32>",
        text,
    )
    return text, count


# Dumps of a program whose memory is assigned; the last one is written after the
# others.
_MEMORY = "*.after_optimizations-memory-usage-report.txt"
_OPTIMIZED = "*.after_optimizations.txt"
_ASSIGNED = "*.after_optimizations_after_buffer_assignment.txt"


def compile_hlo(path: str, topology: str, cores: int, mode: str) -> dict:
    """Compiles serialized HLO; returns what the compiler knows of it.

    Sizes are bytes of one core's memory; "memory" is all but the program's own
    code. Flops and bytes are the compiler's model of one core: no measurement.
    The body of each of the `loops` counts once, and of a condition its cheapest
    branch.

    Unless `mode` is WHOLE, the compilation is left once memory is assigned, and
    goes on in a thread: end the process then.
    """
    import numpy as np
    from jax._src.interpreters import mlir as jax_mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    described = topologies.get_topology_desc(
        platform="tpu", topology_name=topology
    )
    devices = described.devices[:cores]
    with open(path, "rb") as file:
        computation = xla_client.XlaComputation(file.read())
    module = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = cores, 1
    build = options.executable_build_options
    build.num_replicas = cores
    build.device_assignment = options.device_assignment = (
        xla_client.DeviceAssignment.create(
            np.array([[device.id] for device in devices])
        )
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as dump:
        if mode != WHOLE:
            build.debug_options.xla_dump_to = dump
        with jax_mlir.make_ir_context():
            if isinstance(module, bytes):
                module = str(ir.Module.parse(module))
            text, collectives = with_collectives(module, cores)
            compilation = futures.ThreadPoolExecutor().submit(
                devices[0].client.compile,
                ir.Module.parse(text),
                xla_client.DeviceList(tuple(devices)),
                options,
            )
            while not compilation.done() and not _paths(dump, _ASSIGNED):
                futures.wait([compilation], timeout=0.1)
        # A compiler without these dumps has gone on to its end.
        facts = (
            _whole(compilation.result())
            if compilation.done()
            else _planned(dump)
        )
    return facts | {"collectives_before": collectives}


def _paths(folder: str, pattern: str) -> list[str]:
    return glob.glob(os.path.join(folder, pattern))


def _whole(program: Any) -> dict:
    """Returns the facts of a compiled program."""
    memory, cost = program.get_compiled_memory_stats(), program.cost_analysis()
    hlo = program.hlo_modules()[0].to_string()
    sizes = {
        name: getattr(memory, f"{name}_size_in_bytes")
        for name in ("argument", "output", "alias", "temp")
    }
    return {
        **sizes,
        "memory": sum(sizes.values()) - 2 * sizes["alias"],
        "generated_code": memory.generated_code_size_in_bytes,
        **_operations(hlo, cost),
    }


def _planned(dump: str) -> dict:
    """Returns the facts of a program whose memory is assigned."""
    import jax
    from jax._src.lib import hlo, xla_client

    report, optimized = (
        _paths(dump, name)[0] for name in (_MEMORY, _OPTIMIZED)
    )
    with open(report) as file:
        used = re.search(
            r"^Memory Space: default .*\n.*?Total bytes: (\d+)",
            file.read(),
            re.MULTILINE,
        )
    if used is None:
        raise ValueError(
            "this libtpu reports memory in another form: use the pinned one"
        )
    with open(optimized) as file:
        module = hlo.hlo_module_from_text(file.read())
    cost = xla_client._xla.hlo_module_cost_analysis(
        jax.devices("cpu")[0].client, module
    )
    # Unlike the dump, which names elements of tuples as `%pair#1`.
    text = module.to_string()
    return {"memory": int(used[1]), **_operations(text, cost)}


def _operations(hlo: str, cost: dict) -> dict:
    """Returns what an optimized program's text and `cost` say."""
    return {
        "flops": cost["flops"],
        "bytes": cost["bytes accessed"] - untaken_bytes(hlo),
        **_collectives(hlo),
        "loops": len(re.findall(r"^.* = .* while\(", hlo, re.M)),
        "float64": bool(re.search(r"\bf64\[", hlo)),
        "dynamic_shapes": bool(re.search(r"\[(?:[^\]]*,)?<=\d", hlo)),
    }


def untaken_bytes(hlo: str) -> int:
    """Bytes by which the dearest branches of conditions exceed the cheapest.

    XLA counts the dearest ones. Of batch normalization, one is for the first
    steps.
    """
    found, conditions = _computations(hlo)
    branches = [[found[b] for b in names] for names in conditions]
    return sum(max(b) - min(b) for b in branches)


_INSTRUCTION = re.compile(
    r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)"
)
_MOVES_NOTHING = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
)


def _computations(
    hlo: str,
) -> tuple[collections.Counter[str], list[list[str]]]:
    """Returns the bytes of computations, and the branches of each condition.

    The bytes are those that the operations read and write.
    """
    found: collections.Counter[str] = collections.Counter()
    conditions, computation = [], ""
    sizes: dict[str, int] = {}
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            computation = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            sizes = {}
        if instruction := _INSTRUCTION.match(line):
            name, shape, operation, rest = instruction.groups()
            sizes[name] = _bytes_of(shape)
            if operation not in _MOVES_NOTHING:
                operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
                read = sum(sizes.get(operand, 0) for operand in operands)
                found[computation] += sizes[name] + read
        if " conditional(" in line:
            named = r"(?:true|false)_computation=%?([\w.\-]+)"
            listed = re.search(r"branch_computations=\{([^}]*)\}", line)
            conditions.append(
                [part.strip().lstrip("%") for part in listed[1].split(",")]
                if listed
                else re.findall(named, line)
            )
    return found, [names for names in conditions if names]


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "f64": 8, "s64": 8}


def _collectives(hlo: str) -> dict:
    """Counts the collectives of a compiled program, and their bytes."""
    line = re.compile(
        r"= (\(.*?\)|\S+) (?:all-reduce|all-gather|all-to-all|"
        r"reduce-scatter|collective-permute)(?:-start)?\("
    )
    shapes = [match[1] for match in map(line.search, hlo.splitlines()) if match]
    return {
        "collectives": len(shapes),
        "collective_bytes": _bytes_of(" ".join(shapes)),
    }


def _bytes_of(shapes: str) -> int:
    """Adds up the bytes of shapes, such as `bf16[64,7]{1,0}`."""
    return sum(
        _BYTES.get(kind, 4) * math.prod(map(int, re.findall(r"\d+", sides)))
        for kind, sides in re.findall(r"\b(\w+)\[([\d,]*)\]", shapes)
    )


def main(path: str, topology: str, cores: str, mode: str) -> None:
    """Prints the facts, or {"error": the compiler's message}."""
    # Neither a TPU nor Google's metadata server is needed, and none is shared.
    os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu")
    os.environ.update(ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    try:
        facts = compile_hlo(path, topology, int(cores), mode)
    except Exception as error:  # Whatever jax and libtpu raise.
        facts = {"error": str(error) or type(error).__name__}
    print(json.dumps(facts), flush=True)
    os._exit(0)  # Without waiting for the rest of a planned compilation.


if __name__ == "__main__":
    main(*sys.argv[1:])
