"""Model files of other frameworks, served by workers where tritonserver lacks the backend for them.

table     which formats there are, and by which file, backend or platform one is known
pbtxt     config.pbtxt, read into the JSON form that the rest of this package uses
recipe    what travels to a worker: the folder of a model and its configuration
model     the callable that a worker serves: versions, batches, one loaded file each
complete  the parts of a configuration that the file itself tells
probe     the program that completes a configuration, in the workers' environment

Each further module loads one format: `load(path, config)` returns `Loaded`. Only workers and the probe
import those, so that no framework is ever loaded in the daemon.
"""

from __future__ import annotations
