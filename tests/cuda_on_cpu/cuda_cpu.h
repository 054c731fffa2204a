// Runs CUDA kernels on the processor. The replacement of nvcc includes it before a .cu file.
//
// A thread of a block is a fibre. It runs until it waits at a barrier or a warp operation; then the next one
// runs, in a configurable order. Blocks are distributed over threads of the operating system.
//
// It reports: barriers that not all threads reach, or that they reach at different lines; warp operations
// with a mask that lacks the caller, a lane that is read, or a lane that never arrives; deadlocks; and __ldg of an
// array that the kernel may write. Shared memory is NaN at the start of a block. With -fsanitize=thread, unordered uses of the same memory by two
// threads of a block are a race. With -fsanitize=address, shared arrays have red zones.
#pragma once
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "launch.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

using std::max;
using std::min;

// ---- Keywords

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static  // only static arrays have red zones, so one thread does all blocks
#else
#define __shared__ thread_local
#endif

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
struct alignas(4) ushort2 {
    unsigned short x, y;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace cuda_cpu {

// ---- Annotations for the thread sanitizer: every switch, and every ordering of threads (barriers, warp
// operations, start and end of a block), each by an address.

#ifdef __SANITIZE_THREAD__
inline void release(void* order) { __tsan_release(order); }
inline void acquire(void* order) { __tsan_acquire(order); }
inline void* this_fibre() { return __tsan_get_current_fiber(); }
inline void* new_fibre() { return __tsan_create_fiber(0); }
inline void delete_fibre(void* fibre) { __tsan_destroy_fiber(fibre); }
// Always inlined, because the sanitizer's call stack belongs to the fibre.
[[gnu::always_inline]] inline void switch_to(void* fibre) {
    __tsan_switch_to_fiber(fibre, __tsan_switch_to_fiber_no_sync);
}
#else
inline void release(void*) {}
inline void acquire(void*) {}
inline void* this_fibre() { return nullptr; }
inline void* new_fibre() { return nullptr; }
inline void delete_fibre(void*) {}
inline void switch_to(void*) {}
#endif

// ---- A block and its threads

constexpr unsigned WARP = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_GRID_YZ = 65535;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t PAGE_BYTES = 4096;

enum class State { ready, at_barrier, in_warp_operation, done };

struct Fibre {
    uint3 index;
    unsigned lane, warp;
    State state = State::done;
    bool started = false;
    void* place[5];
    char* stack;
    void* sanitized;
};

// The lanes that wait in a warp operation. There are two sets, because results must stay readable while the
// next operation gathers.
struct Warp {
    unsigned arrived = 0, mask = 0, generation = 0;
    const char* operation = nullptr;
    uint64_t values[2][WARP];
};

// An argument that points to memory of the device.
struct Array {
    const void* address;
    const void* memory[2];  // start and end
    bool may_be_written;
};

struct Block {
    dim3 grid, shape;
    uint3 index;
    unsigned n_threads, alive = 0, arrived = 0, generation = 0;
    int line = 0;  // of the current barrier
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    std::atomic<Fibre*> running{nullptr};  // atomic: read again after every switch
    void* scheduler[5];
    void (*body)(const void*);
    const void* arguments;
    const std::vector<Array>* arrays;
    const char* error = nullptr;
    void* sanitized;
    char begin, end, barriers[2];
};

static thread_local Block* block = nullptr;

inline Fibre& self() { return *block->running.load(std::memory_order_relaxed); }

// ---- Switching, by the compiler's jumps, because the sanitizers do not support the C library's

// A separate function, because no function may both set a jump target and jump. It never returns, so the
// sanitizers must not record a call.
[[noreturn, gnu::noinline, gnu::no_sanitize("address", "thread")]] inline void jump(void** place) {
    __builtin_longjmp(place, 1);
}

[[gnu::noinline, gnu::no_sanitize("address")]] inline void to_scheduler() {
    Fibre& me = self();
    switch_to(block->sanitized);
    if (!__builtin_setjmp(me.place)) jump(block->scheduler);
}

[[gnu::noinline]] inline void wait_in(State state) {
    self().state = state;
    to_scheduler();
}

inline void fibre_main() {
    for (;;) {
        acquire(&block->begin);
        block->body(block->arguments);
        release(&block->end);
        wait_in(State::done);
    }
}

[[gnu::noinline, gnu::no_sanitize("address")]] inline void resume(Fibre& fibre) {
    block->running.store(&fibre, std::memory_order_relaxed);
    if (__builtin_setjmp(block->scheduler)) return;
    switch_to(fibre.sanitized);
    if (fibre.started) jump(fibre.place);
    fibre.started = true;
    ucontext_t start;  // not in Fibre: the scheduler looks at the states of all fibres again and again
    getcontext(&start);
    start.uc_stack = {fibre.stack, 0, STACK_BYTES};
    start.uc_link = nullptr;
    makecontext(&start, fibre_main, 0);
    setcontext(&start);
}

// ---- Barriers and warp operations

#ifdef __SANITIZE_THREAD__
// Whether a barrier is left out, so that a test sees the race behind it: CUDA_CPU_WITHOUT is FILE:LINE.
inline bool is_left_out(const char* file, int line) {
    static const char* const without = getenv("CUDA_CPU_WITHOUT");
    if (!without) return false;
    const char* const colon = strrchr(without, ':');
    const size_t length = strlen(file), name = (size_t)(colon - without);
    return atoi(colon + 1) == line && length >= name && !strncmp(file + length - name, without, name);
}
#else
constexpr bool is_left_out(const char*, int) { return false; }
#endif

inline void open_barrier(Block& b) {
    b.arrived = 0;
    b.generation++;
    for (Fibre& fibre : b.fibres)
        if (fibre.state == State::at_barrier) fibre.state = State::ready;
}

inline void barrier(int line) {
    Block& b = *block;
    char* order = &b.barriers[b.generation % 2];
    release(order);
    if (b.arrived == 0) b.line = line;
    if (b.line != line) b.error = "threads of one block wait at different __syncthreads";
    self().state = State::at_barrier;
    if (++b.arrived == b.alive) open_barrier(b);
    to_scheduler();
    acquire(order);
}

// Publishes a value, waits for all lanes of the mask, and returns their published values.
inline const uint64_t* exchange(unsigned mask, uint64_t value, const char* operation) {
    Block& b = *block;
    Fibre& me = self();
    Warp& warp = b.warps[me.warp];
    if (!(mask >> me.lane & 1)) b.error = "a lane calls a *_sync operation whose mask leaves it out";
    if (warp.arrived == 0) {
        warp.mask = mask;
        warp.operation = operation;
    } else if (warp.mask != mask || warp.operation != operation) {
        b.error = "lanes of one warp wait in different *_sync operations or masks";
    }
    uint64_t* values = warp.values[warp.generation % 2];
    values[me.lane] = value;
    warp.arrived |= 1u << me.lane;
    release(values);
    if (warp.arrived == mask) {
        warp.arrived = 0;
        warp.generation++;
        for (unsigned i = me.warp * WARP; i < min(b.n_threads, (me.warp + 1) * WARP); i++)
            if (b.fibres[i].state == State::in_warp_operation) b.fibres[i].state = State::ready;
    } else {
        wait_in(State::in_warp_operation);
    }
    acquire(values);
    return values;
}

template <class To, class From>
To bits_as(From from) {
    static_assert(sizeof(From) <= sizeof(uint64_t) && sizeof(To) <= sizeof(uint64_t));
    uint64_t bits = 0;
    To to;
    memcpy(&bits, &from, sizeof from);
    memcpy(&to, &bits, sizeof to);
    return to;
}

// The value of lane `source`, or the caller's value if that lane is outside its segment of `width` lanes.
template <class T>
T shuffle(unsigned mask, T value, int source, int width, const char* operation) {
    const int lane = (int)self().lane, segment = lane & ~(width - 1);
    if (source < segment || source >= segment + width) source = lane;
    if (!(mask >> source & 1)) block->error = "a shuffle reads a lane that its mask leaves out";
    return bits_as<T>(exchange(mask, bits_as<uint64_t>(value), operation)[source]);
}

// ---- Running a grid

// Stacks, each with a protected page below it. The pages take as long to protect as a small launch takes, so that
// the driver keeps them for later launches.
struct Stacks {
    static constexpr size_t PITCH = PAGE_BYTES + STACK_BYTES;
    const Launch& how;
    size_t bytes;
    char* memory;

    Stacks(unsigned n, const Launch& launch) : how(launch), bytes(n * PITCH) {
        memory = how.take_stacks ? how.take_stacks(bytes) : nullptr;
        if (memory) return;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        memory = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) abort();
        for (unsigned i = 0; i < n; i++) mprotect(memory + i * PITCH, PAGE_BYTES, PROT_NONE);
    }
    ~Stacks() {
        if (how.keep_stacks) how.keep_stacks(memory, bytes);
        else munmap(memory, bytes);
    }
    char* operator[](unsigned i) { return memory + i * PITCH + PAGE_BYTES; }
};

// Storage of this module for each thread of the operating system: the shared arrays and `block`.
struct ThreadLocals {
    char* memory = nullptr;
    size_t bytes = 0;

    ThreadLocals() { dl_iterate_phdr(find, this); }
    static int find(dl_phdr_info* module, size_t, void* found) {
        bool mine = false;
        size_t bytes = 0;
        for (int i = 0; i < module->dlpi_phnum; i++) {
            const ElfW(Phdr) & segment = module->dlpi_phdr[i];
            if (segment.p_type == PT_LOAD)
                mine = mine || (uintptr_t)&find - module->dlpi_addr - segment.p_vaddr < segment.p_memsz;
            if (segment.p_type == PT_TLS) bytes = segment.p_memsz;
        }
        if (mine) *(ThreadLocals*)found = ThreadLocals((char*)module->dlpi_tls_data, bytes);
        return mine;
    }
    void fill_with_nan() const {
        char *const before = (char*)&block, *const after = (char*)(&block + 1);
        memset(memory, 0xff, before - memory);
        memset(after, 0xff, memory + bytes - after);
    }

   private:
    ThreadLocals(char* m, size_t b) : memory(m), bytes(b) {}
};

inline void begin_block(Block& b, unsigned number, const ThreadLocals& shared) {
    b.index = {number % b.grid.x, number / b.grid.x % b.grid.y, number / b.grid.x / b.grid.y};
    b.alive = b.n_threads;
    b.arrived = 0;
    for (Fibre& fibre : b.fibres) fibre.state = State::ready;
    shared.fill_with_nan();
    release(&b.begin);
}

inline void shuffle_order(std::vector<unsigned>& order, uint32_t& random) {
    for (size_t i = order.size(); i > 1; i--) {
        random = random * 1664525u + 1013904223u;
        std::swap(order[i - 1], order[(random >> 8) % i]);
    }
}

// Runs the threads of a block in turn, each until it waits, until all are done.
inline void run_block(Block& b, std::vector<unsigned>& order, bool at_random, uint32_t& random) {
    while (b.alive > 0 && !b.error) {
        bool any_ran = false;
        if (at_random) shuffle_order(order, random);
        for (unsigned i : order) {
            Fibre& fibre = b.fibres[i];
            if (fibre.state != State::ready) continue;
            any_ran = true;
            resume(fibre);
            if (fibre.state == State::done && --b.alive > 0 && b.arrived == b.alive) open_barrier(b);
            if (b.error) return;
        }
        if (!any_ran) b.error = "deadlock: a barrier or *_sync operation waits for a thread that never comes";
    }
    acquire(&b.end);
}

// The loop of one thread of the operating system: takes blocks until none are left.
inline const char* run_blocks(const Launch& how, void (*body)(const void*), const void* arguments,
                              const std::vector<Array>& arrays, std::atomic<unsigned>& next) {
    Block b;
    b.grid = {how.grid[0], how.grid[1], how.grid[2]};
    b.shape = {how.block[0], how.block[1], how.block[2]};
    b.n_threads = b.shape.x * b.shape.y * b.shape.z;
    b.body = body;
    b.arguments = arguments;
    b.arrays = &arrays;
    b.fibres.resize(b.n_threads);
    b.warps.resize((b.n_threads + WARP - 1) / WARP);
    Stacks stacks(b.n_threads, how);
    std::vector<unsigned> order(b.n_threads);
    uint32_t random = how.order * 2654435761u + 1;
    b.sanitized = this_fibre();
    for (unsigned i = 0; i < b.n_threads; i++) {
        Fibre& fibre = b.fibres[i];
        fibre.index = {i % b.shape.x, i / b.shape.x % b.shape.y, i / b.shape.x / b.shape.y};
        fibre.lane = i % WARP;
        fibre.warp = i / WARP;
        fibre.stack = stacks[i];
        order[i] = how.order == 1 ? b.n_threads - 1 - i : i;
        fibre.sanitized = new_fibre();
    }
    block = &b;
    const ThreadLocals shared;
    const unsigned n_blocks = b.grid.x * b.grid.y * b.grid.z;
    for (unsigned number; !b.error && (number = next++) < n_blocks;) {
        begin_block(b, number, shared);
        run_block(b, order, how.order >= 2, random);
    }
    for (Fibre& fibre : b.fibres) delete_fibre(fibre.sanitized);
    block = nullptr;
    return b.error;
}

template <class... A>
struct Kernel {
    static constexpr size_t N = sizeof...(A);
    void (*function)(A...);
    const char* at[N + 1];  // address of each argument; the last one: their end

    Kernel(void (*f)(A...), const void* packed) : function(f) {
        size_t offset = 0, i = 0;
        auto place = [&](size_t alignment, size_t bytes) {
            offset = (offset + alignment - 1) / alignment * alignment;
            at[i++] = (const char*)packed + offset;
            offset += bytes;
        };
        (place(alignof(A), sizeof(A)), ...);
        at[N] = (const char*)packed + offset;
    }
    template <size_t I, class T>
    T argument() const {
        T value;
        memcpy(&value, at[I], sizeof value);
        return value;
    }
    template <size_t... I>
    void call(std::index_sequence<I...>) const {
        function(argument<I, std::remove_cv_t<A>>()...);
    }
    // Adds an argument to the arrays if it is one. Returns false for an address that is not on the device.
    template <size_t I, class T>
    bool add_array(const Launch& how, std::vector<Array>& arrays) const {
        if constexpr (std::is_pointer_v<T>) {
            Array array{argument<I, T>(), {}, !std::is_const_v<std::remove_pointer_t<T>>};
            if (!array.address || !how.find_memory) return true;
            if (!how.find_memory(how.owner, array.address, array.memory)) return false;
            arrays.push_back(array);
        }
        return true;
    }
    template <size_t... I>
    bool add_arrays(const Launch& how, std::vector<Array>& arrays, std::index_sequence<I...>) const {
        return (add_array<I, std::remove_cv_t<A>>(how, arrays) && ...);
    }
    static void body(const void* kernel) { ((const Kernel*)kernel)->call(std::index_sequence_for<A...>{}); }
};

// Whether an array is the argument of a pointer to const and of another pointer: nvcc may load it as read-only.
inline bool is_read_and_written(const std::vector<Array>& arrays) {
    for (const Array& one : arrays)
        for (const Array& other : arrays)
            if (one.address == other.address && one.may_be_written && !other.may_be_written) return true;
    return false;
}

template <class... A>
const char* launch(void (*function)(A...), const Launch& how, unsigned most_threads) {
    const uint64_t n_threads = (uint64_t)how.block[0] * how.block[1] * how.block[2];
    const uint64_t n_blocks = (uint64_t)how.grid[0] * how.grid[1] * how.grid[2];
    if (n_threads == 0 || n_threads > MAX_THREADS || n_blocks == 0 || n_blocks > UINT32_MAX / 2)
        return "no such shape of grid or block";
    if (how.grid[1] > MAX_GRID_YZ || how.grid[2] > MAX_GRID_YZ) return "a grid of more than 65,535 in y or z";
    if (n_threads > most_threads) return "more threads in a block than the kernel's launch bounds";
    const Kernel<A...> kernel(function, how.arguments);
    if ((size_t)(kernel.at[kernel.N] - (const char*)how.arguments) != how.argument_bytes)
        return "the arguments are not as many bytes as the kernel takes";
    std::vector<Array> arrays;
    if (!kernel.add_arrays(how, arrays, std::index_sequence_for<A...>{}))
        return "a pointer argument is no address of this device";
    if (is_read_and_written(arrays)) return "an array is a read-only argument and one that is written";
#ifdef __SANITIZE_ADDRESS__
    const unsigned os_threads = 1;
#else
    const unsigned os_threads = (unsigned)std::min<uint64_t>(how.os_threads, n_blocks);
#endif
    std::atomic<unsigned> next{0};
    std::atomic<const char*> error{nullptr};
    auto work = [&] {
        if (const char* e = run_blocks(how, Kernel<A...>::body, &kernel, arrays, next)) error = e;
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < os_threads; i++) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
    return error;
}

}  // namespace cuda_cpu

// Used in a generated file after the .cu, one line for each kernel, with the most threads of its launch bounds.
#define CUDA_CPU_EXPORT(kernel, most_threads)                           \
    extern "C" const char* kernel##__cpu(const cuda_cpu::Launch* how) { \
        return cuda_cpu::launch(kernel, *how, most_threads);            \
    }

// ---- Functions for kernels

#define threadIdx (cuda_cpu::self().index)
#define blockIdx (cuda_cpu::block->index)
#define blockDim (cuda_cpu::block->shape)
#define gridDim (cuda_cpu::block->grid)
#define __syncthreads() (cuda_cpu::is_left_out(__FILE__, __LINE__) ? (void)0 : cuda_cpu::barrier(__LINE__))

inline void __syncwarp(unsigned mask = ~0u) { cuda_cpu::exchange(mask, 0, "syncwarp"); }
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int segment = (int)cuda_cpu::self().lane & ~(width - 1);
    return cuda_cpu::shuffle(mask, value, segment + (source & (width - 1)), width, "shfl");
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    return cuda_cpu::shuffle(mask, value, (int)(cuda_cpu::self().lane - distance), width, "shfl_up");
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    return cuda_cpu::shuffle(mask, value, (int)(cuda_cpu::self().lane + distance), width, "shfl_down");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    return cuda_cpu::shuffle(mask, value, (int)cuda_cpu::self().lane ^ bits, width, "shfl_xor");
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const uint64_t* values = cuda_cpu::exchange(mask, predicate != 0, "ballot");
    unsigned votes = 0;
    for (unsigned lane = 0; lane < cuda_cpu::WARP; lane++)
        if (mask >> lane & 1) votes |= (unsigned)values[lane] << lane;
    return votes;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
// The lanes that have the values of the caller.
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    const uint64_t mine = cuda_cpu::bits_as<uint64_t>(value);
    const uint64_t* values = cuda_cpu::exchange(mask, mine, "match_any");
    unsigned same = 0;
    for (unsigned lane = 0; lane < cuda_cpu::WARP; lane++)
        if (mask >> lane & 1) same |= (unsigned)(values[lane] == mine) << lane;
    return same;
}

// A load that may miss what the kernel has written. It is not checked under the thread sanitizer, because the
// check hides races of the load from it.
template <class T>
T __ldg(const T* address) {
#ifndef __SANITIZE_THREAD__
    for (const cuda_cpu::Array& array : *cuda_cpu::block->arrays)
        if (array.may_be_written && address >= array.memory[0] && address < array.memory[1])
            cuda_cpu::block->error = "__ldg of an array that the kernel may write";
#endif
    return *address;
}
template <class T>
T atomicAdd(T* address, std::common_type_t<T> value) {
    T old, sum;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do sum = old + value;
    while (!__atomic_compare_exchange(address, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline int __float_as_int(float x) { return cuda_cpu::bits_as<int>(x); }
inline float __int_as_float(int x) { return cuda_cpu::bits_as<float>(x); }
