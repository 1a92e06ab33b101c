"""The versions of a model that are served, and their replacement."""

import asyncio
import contextlib
import ctypes
import gc
import os
import time
from collections.abc import Iterator

from tf_contrastive import exporting
from tf_contrastive.base import errors, terminal
from tf_contrastive.serving.rest import RestError
from tf_contrastive.serving.saved_model import SavedModel

# After a version could not be loaded: it may still be copied.
_RETRY_SECONDS = 10.0


class _Version:
    """A version and its state.

    Attributes:
      model: None unless it can be used.
      state: as in the status of TensorFlow Serving.
      error: why it could not be loaded.
      users: requests that are using it.
      failed: when it could not be loaded, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.model: SavedModel | None = None
        self.state = "LOADING"
        self.error = ""
        self.users = 0
        self.failed = 0.0


class Versions:
    """The versions of a model that are served.

    Args:
      path: folder of versions, or of one.
      wanted: "latest", "all", or numbers.
      name: of the model.
    """

    def __init__(self, path: str, wanted: str, name: str) -> None:
        self._path, self._wanted, self._name = path, wanted, name
        self._single = exporting.is_complete(path)
        self._versions: dict[int, _Version] = {}
        self._unloaded = False

    def load_first(self) -> int:
        """Loads the versions before there are requests; returns the newest.

        Raises:
          UserError: if one of them cannot be loaded.
        """
        paths = self._paths()
        if self._wanted not in ("latest", "all"):
            for number in map(int, self._wanted.split(",")):
                if number not in paths:
                    raise errors.UserError(
                        f"{errors.arg('versions', self._wanted)}:"
                        f" {self._path} has no version {number}"
                    )
        for number, path in paths.items():
            self._versions[number] = _Version()
            if error := self._load(number, path):
                raise errors.UserError(f"cannot load {path}: {error}")
        return self.numbers()[0]

    def numbers(self) -> list[int]:
        """Returns the versions that are served, the newest first."""
        states = {n: v.state for n, v in self._versions.items()}
        served = [n for n in states if states[n] == "AVAILABLE"]
        return sorted(served, reverse=True)

    @contextlib.contextmanager
    def using(self, number: int | None) -> Iterator[tuple[int, SavedModel]]:
        """Gives a version, the newest by default, which stays until the end.

        Raises:
          RestError: status 404 if it is not served.
        """
        served = self.numbers()
        if not served or number not in (None, *served):
            asked = (
                f"Latest({self._name})"
                if number is None
                else f"Specific({self._name}, {number})"
            )
            raise RestError(404, f"Servable not found for request: {asked}")
        number = served[0] if number is None else number
        version = self._versions[number]
        assert version.model
        version.users += 1
        try:
            yield number, version.model
        finally:
            version.users -= 1
            self._unload(number)

    def status(self, number: int | None) -> list[dict[str, object]]:
        """Returns the status of a version or of all, the newest first.

        Raises:
          RestError: status 404 if there is none.
        """
        if number is not None and number not in self._versions:
            raise RestError(
                404, f"Could not find version {number} of model {self._name}"
            )
        return [
            {
                "version": str(key),
                "state": version.state,
                "status": {
                    "error_code": "UNKNOWN" if version.error else "OK",
                    "error_message": version.error,
                },
            }
            for key, version in sorted(self._versions.items(), reverse=True)
            if number in (None, key)
        ]

    async def follow(self, seconds: float) -> None:
        """Loads new versions and unloads those that are not wanted, forever."""
        while not self._single:
            await asyncio.sleep(seconds)
            if self._unloaded:
                self._unloaded = False
                await asyncio.to_thread(_free_memory)
            try:
                await self._refresh()
            except Exception as error:
                terminal.warning(f"{self._path}: {errors.first_line(error)}")

    async def _refresh(self) -> None:
        paths = await asyncio.to_thread(self._paths)
        for number, path in paths.items():
            known = self._versions.get(number)
            if known and known.state == "UNLOADING":
                known.state = "AVAILABLE"
            if known is None or known.state == "END":
                if known and time.monotonic() < known.failed + _RETRY_SECONDS:
                    continue
                version = self._versions[number] = _Version()
                error = await asyncio.to_thread(self._load, number, path)
                if not error:
                    terminal.info(f"version {number} is served")
                elif known is None or error != known.error:
                    terminal.warning(f"cannot load {path}: {error}")
                del version
        # Without them there is something better than an error: the old ones.
        if paths and all(self._versions[n].model for n in paths):
            for number in set(self._versions) - set(paths):
                self._versions[number].state = "UNLOADING"
                self._unload(number)

    def _paths(self) -> dict[int, str]:
        """Returns the folders of the wanted versions that are complete."""
        if self._single:
            name = os.path.basename(os.path.abspath(self._path))
            return {int(name) if name.isdecimal() else 1: self._path}
        found = exporting.complete(self._path)
        if self._wanted == "latest":
            return dict([*found.items()][-1:])
        if self._wanted == "all":
            return found
        numbers = map(int, self._wanted.split(","))
        return {n: found[n] for n in numbers if n in found}

    def _load(self, number: int, path: str) -> str:
        """Loads a version, in any thread; returns why it failed, if it did."""
        version = self._versions[number]
        try:
            model = SavedModel(path)
        except Exception as error:
            version.error = errors.first_line(error)
            version.failed = time.monotonic()
            version.state = "END"
        else:
            version.model, version.state = model, "AVAILABLE"
        return version.error

    def _unload(self, number: int) -> None:
        """Frees a version that is not wanted and has no users."""
        version = self._versions[number]
        if version.state == "UNLOADING" and not version.users:
            del self._versions[number]
            if version.model:
                version.model.close()
                self._unloaded = True
                terminal.info(f"version {number} is not served any more")


def _free_memory() -> None:
    """Returns the memory of unloaded versions to the system.

    Graphs refer to themselves, and rarely enough objects are made for Python to
    search for such. The C library keeps what is freed, and not all have
    `malloc_trim`.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
