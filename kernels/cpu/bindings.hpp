// What the parts of the module dpmix.kernels._cpu share: arrays of NumPy, and the code of an instruction set.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace dpmix {

struct Sweep;

template <class Number, std::size_t DIMENSIONS>
using ArrayOf = nb::ndarray<Number, nb::ndim<DIMENSIONS>, nb::c_contig, nb::device::cpu>;

// The code of an instruction set, the best one if the name is empty; raises ValueError if this processor does
// not have it.
const Sweep& sweep_named(const std::string& name);

}  // namespace dpmix
