// Log densities by tensor cores, as a form to count instructions of (cuda_instructions.py). It has never run.
//
// y = W x - b as a product of matrices in TF32, each factor in two parts: three products give 3xTF32. A warp
// takes 64 events, four tiles of 16, and loops over the components. A tile of whiteners has 8 rows of W and 8
// channels. Of the four tiles of a component the one above the diagonal is zero and left out.
//
//   events       float32 [n_tiles][16][16]              read; channels beyond D are 0
//   components   uint4 [n_components][3][32]            read: both parts of a lane's two numbers of each tile
//   offsets      float2 [n_components][2][4]            read: -b of a lane's two rows of W, for each row tile
//   constants    float32 [n_components]                 read
//   best         float32 [n_tiles][16]                  written: highest log density of an event
//
// Launch    grid n_tiles / 16, block 128: 256 events.
// Source    NVIDIA, Parallel Thread Execution ISA, "Matrix fragments for mma.m16n8k8".

constexpr int TILES = 4;  // of 16 events, for each warp

struct Fragment {
    unsigned of[4];
};

__device__ __forceinline__ unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// sums += a b, for 16 events, 8 channels and 8 rows of W.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const Fragment& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(128)
    tensor_form(const float* __restrict__ events, const uint4* __restrict__ components,
                const float2* __restrict__ offsets, const float* __restrict__ constants, int n_components,
                float* __restrict__ best) {
    const int lane = threadIdx.x % 32, group = lane / 4, column = lane % 4;
    const int first = (blockIdx.x * 4 + threadIdx.x / 32) * TILES;
    Fragment high[TILES][2], low[TILES][2];  // of the events, by eight channels
    float most[TILES][2];                    // of the events `group` and `group + 8` of a tile
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        most[t][0] = most[t][1] = -1e30f;
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int event = group + 8 * (i % 2), channel = 8 * k + column + 4 * (i / 2);
                const float value = events[((first + t) * 16 + event) * 16 + channel];
                high[t][k].of[i] = tf32(value);
                low[t][k].of[i] = tf32(value - __uint_as_float(high[t][k].of[i]));
            }
        }
    }
    for (int j = 0; j < n_components; j++) {
        uint4 whitener[3];
#pragma unroll
        for (int s = 0; s < 3; s++) whitener[s] = components[(j * 3 + s) * 32 + lane];
        const float2 start[2] = {offsets[(j * 2 + 0) * 4 + column], offsets[(j * 2 + 1) * 4 + column]};
        const float constant = constants[j];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            float y[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                y[n][0] = y[n][2] = start[n].x;
                y[n][1] = y[n][3] = start[n].y;
            }
#pragma unroll
            for (int s = 0; s < 3; s++) {
                const int n = (s + 1) / 2, k = s / 2;  // rows and channels: (0, 0), (1, 0), (1, 1)
                multiply_add(y[n], low[t][k], whitener[s].x, whitener[s].y);
                multiply_add(y[n], high[t][k], whitener[s].z, whitener[s].w);
                multiply_add(y[n], high[t][k], whitener[s].x, whitener[s].y);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    sum = fmaf(y[n][2 * half], y[n][2 * half], sum);
                    sum = fmaf(y[n][2 * half + 1], y[n][2 * half + 1], sum);
                }
                sum += __shfl_xor_sync(~0u, sum, 1);
                sum += __shfl_xor_sync(~0u, sum, 2);
                most[t][half] = fmaxf(most[t][half], constant - sum);
            }
        }
    }
    for (int t = 0; t < TILES; t++) {
        if (column == 0) {
            best[(first + t) * 16 + group] = most[t][0];
            best[(first + t) * 16 + group + 8] = most[t][1];
        }
    }
}
