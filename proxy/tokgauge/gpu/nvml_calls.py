"""The choke point for calls of NVML: every error becomes "absent", and is counted by kind.

Source of names, error codes and behaviour: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pynvml

__all__ = ["DeviceLostError", "Function", "NvmlCalls", "SessionEndedError", "named"]

_log = logging.getLogger(__name__)

_ERROR_KINDS: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
_SESSION_ENDED = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_DEVICE_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_ASK_AN_OLDER_FUNCTION = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
# pynvml raises NVMLError(0) when process utilisation succeeds at once, with nothing to report.
_NO_SAMPLES = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})


class SessionEndedError(Exception):
    """NVML as a whole can no longer be used; the session has to be opened again."""


class DeviceLostError(Exception):
    """One GPU has gone; its handle is void."""


Function = tuple[str, Callable[..., Any]]
"""A function's name (for the log) and a call of it."""


def named(*names: str) -> tuple[Function, ...]:
    """The functions of pynvml with these names, the newest version first.

    Looked up when called, because an older pynvml may lack one: that is an AttributeError.
    """
    return tuple((name, partial(_call, name)) for name in names)


def _call(name: str, *args: object) -> Any:
    return getattr(pynvml, name)(*args)


class NvmlCalls:
    """Asks NVML, counts what fails, and logs each kind of failure once.

    Not thread-safe, as its reader is not.
    """

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        """Failed calls by kind, expected ones included."""
        self.last_kind: str | None = None
        """Of the last failure that is none of the expected ones."""
        self._missing: set[str] = set()
        self._logged: set[str] = set()

    def look_again(self) -> None:
        """Try functions again that were missing: a driver may have been upgraded meanwhile."""
        self._missing.clear()

    def ask(self, name: str, *args: object) -> Any:
        """The answer of the pynvml function `name`, or None."""
        return self.ask_newest(named(name), *args)

    def ask_newest(
        self, functions: Sequence[Function], *args: object, no_samples: object = None
    ) -> Any:
        """The answer of the newest function that exists, or None.

        `no_samples` is the answer to give for NOT_FOUND. Raises only SessionEndedError and
        DeviceLostError.
        """
        for name, call in functions:
            if name in self._missing:
                continue
            try:
                return call(*args)
            except pynvml.NVMLError as error:
                code = int(error.value)
                if no_samples is not None and code in _NO_SAMPLES:
                    return no_samples
                kind = _ERROR_KINDS.get(code, "unknown")
                self._count(name, kind)
                if code in _SESSION_ENDED:
                    raise SessionEndedError from error
                if code in _DEVICE_LOST:
                    raise DeviceLostError from error
                if code not in _ASK_AN_OLDER_FUNCTION:
                    return None
                self._missing.add(name)
            except (pynvml.NVMLLibraryMismatchError, AttributeError):
                self._count(name, "function_not_found")
                self._missing.add(name)
            except UnicodeError:
                self._count(name, "unicode")
                return None
            except Exception:
                # The border of this module: bindings have raised TypeError, OSError and
                # ctypes.ArgumentError when library and struct versions differ.
                self._count(name, "binding")
                return None
        return None

    def _count(self, function: str, kind: str) -> None:
        self.errors[kind] += 1
        if kind in {"function_not_found", "binding"}:
            # An unknown function is one that NVML has in another driver or pynvml version.
            if function not in self._logged:
                self._logged.add(function)
                _log.info("NVML function %s cannot be used here (%s)", function, kind)
        elif kind not in {"not_supported", "not_found", "unicode"}:
            self.last_kind = kind
            if kind not in self._logged:
                self._logged.add(kind)
                _log.warning("NVML: %s failed: %s", function, kind)
