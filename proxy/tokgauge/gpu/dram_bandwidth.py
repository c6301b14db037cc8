"""NVML's own measurement of the DRAM bandwidth in use (GPM, Hopper and later)."""

import math
from typing import Any

import pynvml

from tokgauge.gpu.nvml_calls import NvmlCalls
from tokgauge.gpu.readings import ratio_of

__all__ = ["DramBandwidth"]

# NVML wants the two samples of a GPM metric to be at least this far apart.
_SHORTEST_GAP_SECONDS = 0.1


class DramBandwidth:
    """GPM metric 10 of one GPU: the share of DRAM bandwidth used between two samples."""

    def __init__(self) -> None:
        self._older: Any = None
        self._older_at = -math.inf
        self._request: Any = None

    def read(self, calls: NvmlCalls, gpu: object, at: float) -> float | None:
        """The share (0 to 1) since the previous call; None on the first call or when too soon."""
        if self._older is not None and at - self._older_at < _SHORTEST_GAP_SECONDS:
            return None
        newer = calls.ask("nvmlGpmSampleAlloc")
        if newer is None:
            return None
        taken = calls.ask("nvmlGpmSampleGet", gpu, newer)
        older = self._older
        if taken is None:
            _free_sample(calls, newer)
            return None
        self._older, self._older_at = newer, at
        if older is None:
            return None
        value = self._compare(calls, older, newer)
        _free_sample(calls, older)
        return value

    def _compare(self, calls: NvmlCalls, older: object, newer: object) -> float | None:
        if self._request is None:
            self._request = pynvml.c_nvmlGpmMetricsGet_t()
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = older, newer
        metric = request.metrics[0]
        metric.metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = calls.ask("nvmlGpmMetricsGet", request)
        if answer is None or metric.nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return ratio_of(metric.value)

    def free(self, calls: NvmlCalls) -> None:
        """Give the kept sample back to NVML."""
        if self._older is not None:
            older, self._older = self._older, None
            _free_sample(calls, older)


def _free_sample(calls: NvmlCalls, sample: object) -> None:
    calls.ask("nvmlGpmSampleFree", sample)
