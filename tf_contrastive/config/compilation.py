"""Compilation for a TPU that is not there."""

from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import option


class Compilation(Group):
    """Compilation for a TPU that is not there."""

    compile_for: str = option(
        "",
        "compile the step for a TPU instead, without having one: CHIP:SHAPE,"
        " such as v4:2x2x1, v5e:2x2 or v6e:2x4; doctor prints work, memory per"
        " core and the rate that the input must deliver; `lab benchmark step`"
        " compares the step with the encoder alone",
        identity=False,
    )
    compile_python: str = option(
        "",
        "Python with jax and libtpu; empty: that of launch/install"
        " --tpu-compile",
        identity=False,
    )
