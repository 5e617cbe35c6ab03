"""Hide numba-cuda, so that ``numba.cuda`` is the target that numba itself bundles, as on macOS.

A pytest plugin: ``pytest -p bundled``. It must be imported before numba.
"""

import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "NumbaCudaFinder"]
