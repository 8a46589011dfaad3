"""To be imported before all else that imports structlog: it shows tracebacks as they are.

With rich, which the command line brings, it takes a tenth of a second for each. The daemon's own start does the same
(dispatcher/__main__.py).
"""

from __future__ import annotations

import sys

if "structlog" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
