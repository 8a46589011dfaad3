"""Variables that keep numerical libraries to one thread.

Small matrices make their threads wait for each other, and they wait by spinning: where several tests share two cores, a
classifier of digits takes ten times the CPU time with them.
"""

from __future__ import annotations

#: OpenBLAS, which numpy and scipy have, and libraries with OpenMP (scikit-learn, LightGBM, XGBoost).
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
