// The Python module dpmix.kernels._cuda_commands (types: kernels/_cuda_commands.pyi): calls of the CUDA driver,
// in order and without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda_commands.hpp"
#include "cuda_passes.hpp"

namespace nb = nanobind;

namespace dpmix {
namespace {

using Words = nb::ndarray<const Word, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<const float, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Lines = std::vector<std::shared_ptr<Line>>;
using Programs = std::vector<std::shared_ptr<Program>>;

std::vector<Word> copied(const Words& words) { return {words.data(), words.data() + words.shape(0)}; }

const Word* checked_entries(const Words& entries) {
    if (entries.shape(0) != N_ENTRIES) throw std::invalid_argument("entries: one for each operation");
    return entries.data();
}

nb::tuple run(Words entries, Words commands) {
    const Word* functions = checked_entries(entries);
    check_commands(commands.data(), commands.shape(0));
    Outcome last;
    {
        const nb::gil_scoped_release released;
        last = run_commands(functions, commands.data(), commands.shape(0));
    }
    return nb::make_tuple(last.error, last.operation);
}

nb::tuple busy(Times milliseconds) {
    const Busy found = busy_of(milliseconds.data(), milliseconds.shape(0));
    return nb::make_tuple(found.kernels, found.copies);
}

std::shared_ptr<Program> program(Words start, Words after, Words holes, Words batches, Word context,
                                 Word ended, Word sums, std::size_t n_sums, bool blocking) {
    check_commands(start.data(), start.shape(0));
    check_commands(after.data(), after.shape(0));
    if (holes.shape(0) % 2 || batches.shape(0) % 4)
        throw std::invalid_argument("program: holes have two words, batches four");
    auto made = std::make_shared<Program>();
    made->start = copied(start);
    made->after = copied(after);
    for (std::size_t i = 0; i < holes.shape(0); i += 2) {
        made->holes.push_back({holes.data()[i], holes.data()[i + 1]});
        if (holes.data()[i] >= made->start.size())
            throw std::invalid_argument("program: a hole is in no command");
    }
    for (std::size_t i = 0; i < batches.shape(0); i += 4) {
        const Word* of = batches.data() + i;
        made->batches.push_back({of[0], of[1], of[2], of[3]});
    }
    made->context = context;
    made->ended = ended;
    made->sums = reinterpret_cast<double*>(static_cast<std::uintptr_t>(sums));
    made->n_sums = n_sums;
    made->blocking = blocking;
    return made;
}

// Posts a pass to the lines of its devices. The values of its holes that are addresses must stay alive until it ends.
std::shared_ptr<Pass> start(const Lines& lines, Programs programs, Words values, std::size_t n_sums) {
    if (lines.size() != programs.size() || lines.empty())
        throw std::invalid_argument("start: one program for each line");
    for (const auto& one : programs) {
        const bool fits = lines.size() == 1 ? n_sums <= one->n_sums
                                            : one->n_sums == programs[0]->n_sums && one->n_sums % 4 == 0 &&
                                                  (n_sums == one->n_sums || n_sums == one->n_sums / 4);
        if (!fits) throw std::invalid_argument("start: another number of sums");
        for (const Hole& hole : one->holes)
            if (hole.value >= values.shape(0)) throw std::invalid_argument("start: a hole without a value");
    }
    auto pass = std::make_shared<Pass>(std::move(programs), copied(values), n_sums);
    for (std::size_t device = 0; device < lines.size(); device++) lines[device]->post(pass, device);
    return pass;
}

nb::list outcomes(const Pass& pass) {
    nb::list found;
    for (const DeviceOutcome& one : pass.outcomes())
        found.append(
            nb::make_tuple(one.error, one.operation, one.far, one.work, one.kernels_ms, one.copies_ms));
    return found;
}

nb::ndarray<nb::numpy, double, nb::ndim<1>> sums(std::shared_ptr<Pass> pass) {
    auto* kept = new std::shared_ptr<Pass>(pass);
    nb::capsule owner(kept, [](void* held) noexcept { delete static_cast<std::shared_ptr<Pass>*>(held); });
    return {pass->sums(), {pass->n_sums()}, owner};
}

}  // namespace
}  // namespace dpmix

NB_MODULE(_cuda_commands, module) {
    using namespace nb::literals;
    using namespace dpmix;
    using Released = nb::call_guard<nb::gil_scoped_release>;
    nb::set_leak_warnings(false);  // a program may end without closing its devices, whose threads have lines
    module.def("run", &run, "entries"_a, "commands"_a);
    module.def("busy", &busy, "milliseconds"_a);
    nb::class_<Line>(module, "Line")
        .def(nb::init<>())
        .def("call", &Line::call)
        .def(
            "serve",
            [](Line& line, Words entries) {
                const Word* functions = checked_entries(entries);
                const nb::gil_scoped_release released;
                line.serve(functions);
            },
            "entries"_a);
    nb::class_<Program>(module, "Program")
        .def(nb::new_(&program), "start"_a, "after"_a, "holes"_a, "batches"_a, "context"_a, "ended"_a,
             "sums"_a, "n_sums"_a, "blocking"_a);
    nb::class_<Pass>(module, "Pass")
        .def(nb::new_(&start), "lines"_a, "programs"_a, "values"_a, "n_sums"_a)
        .def("wait", &Pass::wait, Released())
        .def("outcomes", &outcomes)
        .def("sums", &sums);
}
