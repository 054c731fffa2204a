// Runs the engine without Python, so that a cross-compiled engine can run under an emulator for comparison.
//
// Standard input, binary: int32 N, D, K; float32 events [N][D]; float64 log constants [K], means [K][D],
// whiteners [K][D][D]. Standard output: the labels of two draws and of an E step, one number per line, and
// the log likelihood of each pass in hexadecimal. The labels are kept in unnamed files of the present folder.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#endif

#include "engine.hpp"

namespace dpmix {
extern const Sweep DPMIX_SWEEP;
}

template <class T>
static std::vector<T> read(std::size_t n) {
    std::vector<T> values(n);
    if (std::fread(values.data(), sizeof(T), n, stdin) != n) std::abort();
    return values;
}

int main() {
#if defined(_WIN32)
    _setmode(_fileno(stdin), _O_BINARY);
#endif
    const std::vector<std::int32_t> sizes = read<std::int32_t>(3);
    const std::size_t N = sizes[0], D = sizes[1], K = sizes[2];
    const std::vector<float> events = read<float>(N * D);
    const std::vector<double> constants = read<double>(K), means = read<double>(K * D),
                              whiteners = read<double>(K * D * D);
    const dpmix::Whiteners shared(whiteners.data(), sizes[2], sizes[1]);
    const dpmix::Parameters parameters{constants.data(), means.data(), shared};
    dpmix::Engine engine(dpmix::DPMIX_SWEEP, events.data(), N, sizes[1], {2, true, 25.0f, 0, 0, ".", false},
                         std::make_shared<dpmix::Workspaces>());
    std::vector<std::uint16_t> now(K);  // components keep their numbers
    std::iota(now.begin(), now.end(), std::uint16_t{0});
    for (std::uint32_t pass = 0; pass < 3; pass++) {
        const std::size_t n = K * dpmix::moment_count(sizes[1]) + 1;
        std::vector<double> state(4 * n), values(n);
        const dpmix::Totals totals{{state.data(), n}, sizes[1], nullptr};
        if (pass < 2) engine.draw_labels(parameters, now.data(), dpmix::Key{7, 0, pass}, totals);
        else engine.expect_labels(parameters, totals);
        dpmix::values_of(state.data(), n, values.data());
        std::vector<std::int32_t> labels(N);
        engine.copy_labels(0, labels.data());
        for (const std::int32_t label : labels) std::printf("%d\n", label);
        std::printf("%a\n", values.back());
    }
}
