"""Writes what to install on a TPU VM, whose TensorFlow must stay as it is.

`requirements-tpu.txt` is what the package requires besides TensorFlow, for the
TensorFlow that is there; `constraints-tpu.txt` keeps the versions of what that
TensorFlow itself requires. Prints "NAME VERSION" of it and its tf-keras, or "".
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
        others = [m for s, m in _MARKERS.items() if s != stack]
        # tf-keras requires the wheel of another name on a TPU.
        is_tensorflow = re.match(r"(tensorflow|tf-keras|tf_keras)\b(?!-)", need)
        if "extra ==" in marker or marker in others or is_tensorflow:
            continue
        lines.append(need if marker == _MARKERS[stack] else line)
    with open("requirements-tpu.txt", "w") as file:
        file.writelines(f"{line}\n" for line in lines)
    kept = {re.match(r"[\w.-]+", r)[0] for r in metadata.requires(name)}
    with open("constraints-tpu.txt", "w") as file:
        for package in sorted(kept):
            if found := _version(package):
                file.write(f"{package}=={found}\n")
    keras = "" if stack == "card" else f"tf-keras=={minor}.*"
    print(name, version, keras)
    return 0


if __name__ == "__main__":
    sys.exit(main())
