"""Makes the fixtures of this stage's tests: arrays as NumPy writes them, and their elements.

    python examples/stages/table/reference.py

Writes `tests/data/*.npy` and `tests/data/expected.json`: for each file the type and the shape of the tensor, and its elements in C order
as 64-bit floating-point numbers.
"""

import json
from pathlib import Path

import numpy
from numpy.lib import format as npy

DATA = Path(__file__).parent / "tests/data"
numbers = numpy.arange(24).reshape(2, 3, 4)
arrays = {
    "bool": (numbers % 3 == 0),
    "uint8": numbers.astype("u1"),
    "int8": (numbers - 12).astype("i1"),
    "int16_big": (numbers - 12).astype(">i2"),
    "uint16": (numbers * 2000).astype("<u2"),
    "int32_fortran": numpy.asfortranarray((numbers - 12).astype("<i4")),
    "int64": (numbers - 12) * 10**15,
    "uint32": (numbers * 10**8).astype("<u4"),
    "uint64_big": (numbers * 10**15).astype(">u8"),
    "float16": (numbers / 7).astype("f2"),
    "float32_big_fortran": numpy.asfortranarray((numbers / 7).astype(">f4")),
    "float64": numbers / 7,
    "scalar": numpy.array(2.5),
    "vector": numpy.array([1.5, -2.5], "f4"),
    "empty": numpy.zeros((0, 3), "f4"),
}
versions = {"float64": (2, 0), "int8": (3, 0)}

DATA.mkdir(parents=True, exist_ok=True)
expected = {}
for name, array in arrays.items():
    with (DATA / f"{name}.npy").open("wb") as file:
        npy.write_array(file, array, version=versions.get(name))
    dtype = array.dtype.newbyteorder("=").name
    expected[name] = {
        "dtype": {"uint32": "int64", "uint64": "int64"}.get(dtype, dtype),
        "shape": list(array.shape),
        "elements": array.astype("f8").ravel(order="C").tolist(),
    }
numpy.save(DATA / "objects.npy", numpy.array([{}, 1], object), allow_pickle=True)
numpy.save(DATA / "structured.npy", numpy.zeros(2, [("a", "f4"), ("b", "i4")]))
numpy.save(DATA / "complex.npy", numpy.zeros(2, "c8"))
(DATA / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
