"""Writes what to install on a TPU VM, whose TensorFlow must stay as it is.

`requirements-tpu.txt` is what the package requires besides TensorFlow, for the
TensorFlow that is there; `constraints-tpu.txt` is what that TensorFlow itself
requires: pip changes those versions only within its bounds. Prints "NAME
VERSION" of it and its tf-keras, or "".
"""

import re
import sys
from importlib import metadata

# The stack of the newer TensorFlow is chosen by Python's version otherwise.
_MARKERS = {
    "card": 'python_version < "3.12"',
    "current": 'python_version >= "3.12"',
}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_old(need: str) -> bool:
    """Whether newer versions fail without a package they do not require."""
    for name, base, major in (
        ("tensorflow-metadata", "protobuf", 5),
        ("pyarrow", "numpy", 2),
    ):
        if need.startswith(name):
            return int((_version(base) or "0").partition(".")[0]) < major
    return False


def main() -> int:
    names = [n for n in ("tensorflow", "tensorflow-tpu") if _version(n)]
    if not names:
        return 1
    name, version = names[0], _version(names[0])
    minor = ".".join(version.split(".")[:2])
    stack = "card" if minor == "2.15" else "current"
    lines = []
    for line in metadata.requires("tf_contrastive"):
        need, _, marker = (part.strip() for part in line.partition(";"))
        marker_here = _MARKERS["card" if _is_old(need) else stack]
        others = set(_MARKERS.values()) - {marker_here}
        # tf-keras requires the wheel of another name on a TPU.
        is_tensorflow = re.match(r"(tensorflow|tf-keras|tf_keras)\b(?!-)", need)
        if "extra ==" in marker or marker in others or is_tensorflow:
            continue
        lines.append(need if marker == marker_here else line)
    with open("requirements-tpu.txt", "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    with open("constraints-tpu.txt", "w") as file:
        for requirement in metadata.requires(name):
            if "extra ==" not in requirement:
                file.write(f"{requirement}\n")
    keras = "" if stack == "card" else f"tf-keras=={minor}.*"
    print(name, version, keras)
    return 0


if __name__ == "__main__":
    sys.exit(main())
