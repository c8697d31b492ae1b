"""Names for numpy arrays by number format; their shapes are said where they are used."""

import numpy as np
from numpy.typing import NDArray

Bool = NDArray[np.bool_]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
