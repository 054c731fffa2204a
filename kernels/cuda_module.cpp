// The Python module dpmix.kernels._cuda_commands (types: kernels/_cuda_commands.pyi): calls of the CUDA driver,
// in order and without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "cuda_commands.hpp"

namespace nb = nanobind;

namespace dpmix {
namespace {

using Words = nb::ndarray<const Word, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple run(Words entries, Words commands) {
    if (entries.shape(0) != N_OPERATIONS) throw std::invalid_argument("entries: one for each operation");
    check_commands(commands.data(), commands.shape(0));
    Outcome last;
    {
        const nb::gil_scoped_release released;
        last = run_commands(entries.data(), commands.data(), commands.shape(0));
    }
    return nb::make_tuple(last.error, last.operation);
}

}  // namespace
}  // namespace dpmix

NB_MODULE(_cuda_commands, module) {
    using namespace nb::literals;
    module.def("run", &dpmix::run, "entries"_a, "commands"_a);
}
