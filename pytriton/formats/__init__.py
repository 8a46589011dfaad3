"""Model files of other frameworks, served by workers if tritonserver lacks the backend for them.

table     the supported formats, and how a model's format is detected: file, backend or platform
pbtxt     reads config.pbtxt into the JSON form used by the rest of this package
recipe    the payload sent to a worker: the folder of a model and its configuration
model     the callable that a worker serves: versions, batches, one loaded file each
complete  completes a configuration with what the file itself describes
probe     the program that completes a configuration, in the workers' environment

Each other module loads one format: `load(path, config)` returns `Loaded`. Only workers and the probe
import those, so the daemon never loads a framework.
"""

from __future__ import annotations
