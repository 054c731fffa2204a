// Sums of squares of whitened events: |whitener (x - mu)|^2 of one component, for a tile of events.
//
// x[D][TILE] is held as U vectors of W events per channel. There are two forms, `Fixed<D>`, unrolled for one
// D, and `General`, for any D. Both do the same operations on every event in the same order, so they give the
// same bits. Within a row: y = l_0 d_0, then fused multiply-adds in channel order. Over rows: fused y y +
// sum. A rounded sum of squares never decreases, and this makes pruning exact (evaluate.hpp).
#pragma once

#include "simd.hpp"
#include "sweep.hpp"

namespace dpmix {
namespace {

template <int D>
class Fixed {
    Floats x_[D][U];

    // Rows computed together: a channel that is not in a register is then loaded once for all of them.
    // Measured: with 32 registers of 16 floats, 4 rows are up to 6% faster than 2 from D = 20 on; elsewhere it
    // makes no difference. With 16 registers, 2 are the fastest.
    static constexpr int B = W == 16 ? 4 : 2;

    // Adds the squares of rows [First, Last), given the events less the means, and the rows from `First` on.
    template <int First, int Last>
    DPMIX_INLINE static void add_rows(const Floats (*d)[U], const float* rows, Floats (&sums)[U]) {
        DPMIX_UNROLL
        for (int r = First; r < Last; r += B) {
            const int count = r + B < Last ? B : Last - r;
            Floats y[B][U];
            DPMIX_UNROLL
            for (int i = 0; i < r + count; i++) {
                DPMIX_UNROLL
                for (int b = i > r ? i - r : 0; b < count; b++) {
                    const Floats factor = splat(rows[triangle(First, r + b) + i]);
                    DPMIX_UNROLL
                    for (int u = 0; u < U; u++)
                        y[b][u] = i == 0 ? factor * d[0][u] : fma(factor, d[i][u], y[b][u]);
                }
            }
            DPMIX_UNROLL
            for (int b = 0; b < count; b++) {
                DPMIX_UNROLL
                for (int u = 0; u < U; u++) sums[u] = fma(y[b][u], y[b][u], sums[u]);
            }
        }
    }

    // Rows from COPIED on are one function, which all users of this form call; earlier rows are copied into each of
    // them. With three copies of all rows, g++ took three times as long for the whole file, because some of its work
    // grows with the square of a block's length.
    static constexpr int COPIED = D < 16 ? D : 16;
    static __attribute__((noinline)) void add_later_rows(const Floats (*d)[U], const float* rows,
                                                         Floats (&sums)[U]) {
        Floats own[U];  // registers: `sums` might lie among the rows, for all that the compiler knows
        for (int u = 0; u < U; u++) own[u] = sums[u];
        add_rows<COPIED, D>(d, rows, own);
        for (int u = 0; u < U; u++) sums[u] = own[u];
    }

    // Rows [First, Last): params holds the means up to Last, then the rows.
    template <int First, int Last>
    struct Rows {
        const Floats (&x)[D][U];
        static constexpr int first = First, last = Last;

        DPMIX_INLINE void add_squares(const float* params, Floats (&sums)[U]) const {
            Floats d[Last][U];
            DPMIX_UNROLL
            for (int i = 0; i < Last; i++) {
                DPMIX_UNROLL
                for (int u = 0; u < U; u++) d[i][u] = x[i][u] - splat(params[i]);
            }
            const float* rows = params + Last;
            add_rows<First, (Last < COPIED ? Last : COPIED)>(d, rows, sums);
            if constexpr (Last > COPIED) add_later_rows(d, rows + triangle(First, COPIED), sums);
        }
    };

    static constexpr Stages stages = stages_of(D);
    static constexpr int bound(int at) { return stages.bounds[at < stages.count ? at : stages.count]; }

   public:
    DPMIX_INLINE Fixed(const float* tile, int) {
        DPMIX_UNROLL
        for (int i = 0; i < D; i++) {
            DPMIX_UNROLL
            for (int u = 0; u < U; u++) x_[i][u] = *(const Floats*)(tile + i * TILE + u * W);
        }
    }

    static constexpr int n_channels() { return D; }

    // Calls body(rows) with all rows, or with the rows of one stage of pruning.
    template <class Body>
    DPMIX_INLINE auto whole(Body body) const {
        return body(Rows<0, D>{x_});
    }
    template <class Body>
    DPMIX_INLINE auto stage(int g, Body body) const {
        switch (g) {
            case 0: return body(Rows<0, bound(1)>{x_});
            case 1: return body(Rows<bound(1), bound(2)>{x_});
            case 2: return body(Rows<bound(2), bound(3)>{x_});
            default: return body(Rows<bound(3), bound(4)>{x_});
        }
    }
};

class General {
    const Floats* x_;
    int n_channels_;

    struct Rows {
        const Floats* x;
        int first, last;

        // Four rows at a time: a channel of an event is then loaded once for four multiply-adds.
        DPMIX_INLINE void add_squares(const float* params, Floats (&sums)[U]) const {
            Floats d[MAX_CHANNELS * U];
            for (int i = 0; i < last; i++) {
                for (int u = 0; u < U; u++) d[i * U + u] = x[i * U + u] - splat(params[i]);
            }
            const float* row = params + last;
            int r = first;
            for (; r + 4 <= last; r += 4) {
                const float* rows[4] = {row, row + r + 1, row + 2 * r + 3, row + 3 * r + 6};
                DPMIX_UNROLL
                for (int u0 = 0; u0 < U; u0 += 2) four_rows(rows, d + u0, r, sums + u0);
                row += 4 * r + 10;
            }
            for (; r < last; r++) {
                for (int u = 0; u < U; u++) {
                    Floats y = splat(row[0]) * d[u];
                    for (int i = 1; i <= r; i++) y = fma(splat(row[i]), d[i * U + u], y);
                    sums[u] = fma(y, y, sums[u]);
                }
                row += r + 1;
            }
        }

        // Rows r .. r + 3 for two vectors of events.
        DPMIX_INLINE static void four_rows(const float* const (&rows)[4], const Floats* d, int r,
                                           Floats* sums) {
            constexpr int V = 2;
            Floats y[4][V];
            DPMIX_UNROLL
            for (int a = 0; a < 4; a++) {
                DPMIX_UNROLL
                for (int v = 0; v < V; v++) y[a][v] = splat(rows[a][0]) * d[v];
            }
            for (int i = 1; i <= r; i++) {
                DPMIX_UNROLL
                for (int a = 0; a < 4; a++) {
                    DPMIX_UNROLL
                    for (int v = 0; v < V; v++) y[a][v] = fma(splat(rows[a][i]), d[i * U + v], y[a][v]);
                }
            }
            DPMIX_UNROLL
            for (int a = 1; a < 4; a++) {  // the triangle at the end; channel 0 is already included
                DPMIX_UNROLL
                for (int b = 1; b <= a; b++) {
                    DPMIX_UNROLL
                    for (int v = 0; v < V; v++)
                        y[a][v] = fma(splat(rows[a][r + b]), d[(r + b) * U + v], y[a][v]);
                }
            }
            DPMIX_UNROLL
            for (int a = 0; a < 4; a++) {
                DPMIX_UNROLL
                for (int v = 0; v < V; v++) sums[v] = fma(y[a][v], y[a][v], sums[v]);
            }
        }
    };

   public:
    DPMIX_INLINE General(const float* tile, int n_channels)
        : x_((const Floats*)tile), n_channels_(n_channels) {}

    int n_channels() const { return n_channels_; }

    template <class Body>
    DPMIX_INLINE auto whole(Body body) const {
        return body(Rows{x_, 0, n_channels_});
    }
    template <class Body>
    DPMIX_INLINE auto stage(int g, Body body) const {
        const Stages s = stages_of(n_channels_);
        return body(Rows{x_, s.bounds[g], s.bounds[g + 1]});
    }
};

}  // namespace
}  // namespace dpmix
