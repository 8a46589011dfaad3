"""Counts its inputs in metrics of tritonserver's /metrics."""

from __future__ import annotations

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has a counter, a gauge and a histogram, and a family without any metric."""

    def initialize(self, args):
        """Create the metrics."""
        self.families = [
            pb_utils.MetricFamily(
                name="example_things_total",
                description="Things that were given",
                kind=pb_utils.MetricFamily.COUNTER,
            ),
            pb_utils.MetricFamily(
                name="example_last_things",
                description="Things in the newest request",
                kind=pb_utils.MetricFamily.GAUGE,
            ),
            pb_utils.MetricFamily(
                name="example_things",
                description="Things per request",
                kind=pb_utils.MetricFamily.HISTOGRAM,
            ),
            pb_utils.MetricFamily(
                name="example_unused",
                description="Nothing counts here",
                kind=pb_utils.MetricFamily.COUNTER,
            ),
        ]
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.total = self.families[0].Metric(labels=labels)
        self.last = self.families[1].Metric(labels=labels)
        self.spread = self.families[2].Metric(labels=labels, buckets=[1, 10, 100])

    def execute(self, requests):
        """Count; the answer is the counter's value."""
        responses = []
        for request in requests:
            number = int(pb_utils.get_input_tensor_by_name(request, "n").as_numpy()[0])
            self.total.increment(number)
            self.last.set(number)
            self.spread.observe(number)
            seen = np.array([self.total.value()])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("seen", seen)]))
        return responses
