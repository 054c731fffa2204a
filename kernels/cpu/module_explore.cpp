// The part of dpmix.kernels._cpu for dpmix.explore: the pass of a Gaussian process on NumPy arrays.
#include "bindings.hpp"
#include "judged.hpp"

namespace dpmix {
namespace {

using In1 = ArrayOf<const float, 1>;
using In2 = ArrayOf<const float, 2>;
using Out = ArrayOf<float, 1>;

void update(In2 events, In2 points, In1 scales, bool laplacian, In2 rows, In1 targets, const std::string& isa,
            int threads, Out mean, Out variance) {
    const nb::gil_scoped_release released;
    const Judged judged{laplacian,
                        static_cast<int>(points.shape(1)),
                        static_cast<int>(points.shape(0)),
                        static_cast<int>(rows.shape(0)),
                        scales.data(),
                        points.data(),
                        rows.data(),
                        targets.data()};
    update_posterior(sweep_named(isa), judged, events.data(), events.shape(0), threads, mean.data(),
                     variance.data());
}

}  // namespace

void bind_explore(nb::module_& module) {
    using namespace nb::literals;
    module.def("update_posterior", &update, "events"_a, "points"_a, "scales"_a, "laplacian"_a, "rows"_a,
               "targets"_a, "isa"_a, "threads"_a, "mean"_a.noconvert(), "variance"_a.noconvert());
}

}  // namespace dpmix
