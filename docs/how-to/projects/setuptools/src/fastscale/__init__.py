"""Scale vectors on a GPU."""

import ctypes
from pathlib import Path

library = ctypes.CDLL(str(Path(__file__).with_name("libfastscale.so")))
library.fastscale.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float)
