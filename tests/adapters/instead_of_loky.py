"""A plugin for pytest: joblib's own tests that ask for loky get the backend of this package."""

from __future__ import annotations

import joblib._parallel_backends
import joblib.parallel
import scipy.linalg  # noqa: F401 (its threads are as many as numpy's if it comes before any Worker)

from simpler_ref.adapters.joblib_backend import SimplerRefBackend

joblib.parallel.BACKENDS["loky"] = SimplerRefBackend
joblib._parallel_backends.LokyBackend = SimplerRefBackend  # for tests that look at the type
