// A CUDA driver (libcuda.so.1) whose devices are the processor. Modules are shared objects made by the
// replacement of nvcc. Driver entries that are not here are stubs that fail (build.py).
//
// An asynchronous operation waits in its stream until the program synchronises with the stream or with a
// later event. If threads run in random order, streams also progress by themselves at any call. So a program
// with a missing synchronisation reads poison.
//
// All calls take one lock, so devices take turns.
#include <cuda.h>
#include <cudaProfiler.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launch.h"

namespace {

using Clock = std::chrono::steady_clock;
using Operation = std::function<CUresult()>;

constexpr int MAX_DEVICES = 8;
constexpr size_t DEFAULT_MEMORY = (size_t)4 << 30;
constexpr size_t GUARD_BYTES = 256;  // before and after every allocation
constexpr unsigned char GUARD = 0xA5, POISON = 0xFF;
constexpr size_t QUARANTINE_BYTES = (size_t)64 << 20;

struct Context;

struct Record {  // the position of an event in a stream
    struct Stream* stream;
    bool done = false;
    Clock::time_point time;
};

struct Stream {
    Context* context;
    bool waits_for_default;
    std::deque<Operation> waiting;
};

struct Event {
    Context* context;
    bool timed, blocking;
    std::shared_ptr<Record> last;
};

struct Function {
    cuda_cpu::LaunchFunction launch;
    std::string name;
    Context* context;
};

struct Module {
    int file;
    void* library;
    Context* context;
    std::map<std::string, Function> functions;
};

struct Device {
    size_t used = 0;
    unsigned long long bytes_up = 0, bytes_down = 0;
    unsigned sleeping = 0, spinning = 0;  // waits for events, by how the thread waits
    unsigned pageable = 0;                // asynchronous copies of memory that is not page-locked
    unsigned unwritten = 0;               // copies to the host of memory that nothing has written
    std::map<std::string, int> calls;
    int idle_calls = 0;
    bool dead = false;
};

struct Context {
    const int device;
    CUresult error = CUDA_SUCCESS;  // of a failed operation; every later call returns it
    Stream standard{this, true, {}};
    std::set<Stream*> streams{&standard};
    std::map<const char*, size_t> memory, locked;  // allocations on the device; page-locked ones on the host

    explicit Context(int number) : device(number) {}
};

std::recursive_mutex lock;
Device devices[MAX_DEVICES];
std::set<Context*> contexts;
std::set<Event*> events;
std::set<const Function*> functions;
thread_local std::vector<Context*> current;
std::string detail;  // of the last error
std::mt19937 chance;

// ---- Settings of tests

const char* setting(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
}

unsigned number(const char* name, unsigned otherwise) {
    const char* value = setting(name);
    return *value ? (unsigned)strtoul(value, nullptr, 10) : otherwise;
}

int device_count() {
    const unsigned n = number("DPMIX_EMULATED_DEVICES", 1);
    return n < MAX_DEVICES ? (int)n : MAX_DEVICES;
}

// DPMIX_EMULATED_MEMORY: bytes of every device, or a list separated by commas (the last one applies to the
// rest).
size_t memory_of(int device) {
    const char* value = setting("DPMIX_EMULATED_MEMORY");
    if (!*value) return DEFAULT_MEMORY;
    for (; device > 0 && strchr(value, ','); device--) value = strchr(value, ',') + 1;
    return strtoull(value, nullptr, 10);
}

// DPMIX_EMULATED_IDLE: 1 for devices that do nothing: launches and copies end at once, memory is zero.
bool idle() {
    static const bool set = number("DPMIX_EMULATED_IDLE", 0) != 0;
    return set;
}

// DPMIX_EMULATED_FAIL: device:call:n,... The device's n-th such call fails, and so does every later call on
// it. The call "any" counts all calls but cuEventQuery, whose number depends on time.
bool fails(int device, const std::string& call) {
    if (idle()) {
        devices[device].idle_calls += call != "cuEventQuery";
        return false;
    }
    static std::string last;
    const std::string failures = setting("DPMIX_EMULATED_FAIL");
    if (failures != last) {
        last = failures;
        for (Device& d : devices) {
            d.calls.clear();
            d.dead = false;
        }
    }
    Device& d = devices[device];
    if (call == "cuEventQuery") return d.dead;
    for (const std::string& name : {call, std::string("any")}) {
        const std::string failure =
            std::to_string(device) + ":" + name + ":" + std::to_string(++d.calls[name]);
        if (("," + failures + ",").find("," + failure + ",") != std::string::npos) d.dead = true;
    }
    return d.dead;
}

// ---- Streams

CUresult advance(Stream& stream) {
    const Operation operation = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    Context& context = *stream.context;
    const CUresult error = operation();
    if (context.error == CUDA_SUCCESS) context.error = error;
    return context.error;
}

CUresult finish(Stream& stream) {
    while (!stream.waiting.empty()) advance(stream);
    return stream.context->error;
}

CUresult finish(const Record& record) {
    while (!record.done) advance(*record.stream);
    return record.stream->context->error;
}

CUresult finish(Context& context) {
    for (Stream* stream : context.streams) finish(*stream);
    return context.error;
}

std::shared_ptr<Record> record(Stream& stream) {
    auto made = std::make_shared<Record>(Record{&stream, idle(), Clock::now()});
    if (idle()) return made;
    stream.waiting.push_back([made] {
        made->done = true;
        made->time = Clock::now();
        return CUDA_SUCCESS;
    });
    return made;
}

void wait_for(Stream& stream, std::shared_ptr<Record> earlier) {
    stream.waiting.push_back([earlier] { return finish(*earlier); });
}

// The default stream waits for the others, and they wait for it. After an error, no more operations run.
void enqueue(Stream& stream, const Operation& operation) {
    if (idle()) return;
    Context& context = *stream.context;
    for (Stream* other : context.streams) {
        const bool ordered =
            &stream == &context.standard ? other->waits_for_default : other == &context.standard;
        if (other != &stream && ordered && stream.waits_for_default && !other->waiting.empty())
            wait_for(stream, record(*other));
    }
    stream.waiting.push_back(
        [&context, operation] { return context.error == CUDA_SUCCESS ? operation() : context.error; });
    if (number("CUDA_CPU_ORDER", 0) < 2) return;
    for (Stream* any : context.streams)
        while (!any->waiting.empty() && chance() % 2) advance(*any);
}

// ---- Memory

using Allocations = std::map<const char*, size_t>;

const std::pair<const char* const, size_t>* find(const Allocations& all, const void* address) {
    auto after = all.upper_bound((const char*)address);
    if (after == all.begin()) return nullptr;
    const auto& found = *--after;
    return (const char*)address < found.first + found.second ? &found : nullptr;
}

bool inside(const Allocations& all, const void* address, size_t bytes) {
    const auto* found = find(all, address);
    return found && (const char*)address + bytes <= found->first + found->second;
}

char* allocate(size_t bytes) {
    char* memory = nullptr;
    if (posix_memalign((void**)&memory, GUARD_BYTES, bytes + 2 * GUARD_BYTES)) return nullptr;
    memset(memory, GUARD, GUARD_BYTES);
    memset(memory + GUARD_BYTES, idle() ? 0 : POISON, bytes);
    memset(memory + GUARD_BYTES + bytes, GUARD, GUARD_BYTES);
    return memory + GUARD_BYTES;
}

// Freed memory is poisoned and not reused for some time, so a late read returns poison.
void release(const char* address, size_t bytes) {
    static std::deque<std::pair<char*, size_t>> quarantine;
    static size_t held = 0;
    char* memory = (char*)address;
    memset(memory, POISON, bytes);
    quarantine.push_back({memory - GUARD_BYTES, bytes});
    for (held += bytes; held > QUARANTINE_BYTES; quarantine.pop_front()) {
        free(quarantine.front().first);
        held -= quarantine.front().second;
    }
}

bool guards_hold(const Allocations& all) {
    static const std::string intact(GUARD_BYTES, (char)GUARD);
    for (const auto& [memory, bytes] : all) {
        if (memcmp(memory - GUARD_BYTES, intact.data(), GUARD_BYTES)) return false;
        if (memcmp(memory + bytes, intact.data(), GUARD_BYTES)) return false;
    }
    return true;
}

CUresult fail(CUresult error, const std::string& why) {
    detail = why;
    return error;
}

Event* event_of(const Context& context, CUevent handle) {
    auto* event = (Event*)handle;
    return events.count(event) && event->context == &context ? event : nullptr;
}

CUresult no_event() { return fail(CUDA_ERROR_INVALID_HANDLE, "no event of the current context"); }

// ---- Calls

std::string without_version(const std::string& call) { return call.substr(0, call.find('_')); }

// Runs the body of a call on the current context and its device, unless they have failed.
template <class Body>
CUresult on_device(const char* call, Body body) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    if (current.empty() || !contexts.count(current.back())) return CUDA_ERROR_INVALID_CONTEXT;
    Context& context = *current.back();
    if (fails(context.device, without_version(call)))
        return fail(CUDA_ERROR_ECC_UNCORRECTABLE, "the device was made to fail");
    if (context.error != CUDA_SUCCESS) return context.error;
    return body(context);
}

Stream* stream_of(Context& context, CUstream handle) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) return &context.standard;
    return context.streams.count((Stream*)handle) ? (Stream*)handle : nullptr;
}

template <class Body>
CUresult on_stream(const char* call, CUstream handle, Body body) {
    return on_device(call, [&](Context& context) {
        Stream* stream = stream_of(context, handle);
        return stream ? body(*stream) : fail(CUDA_ERROR_INVALID_HANDLE, "no stream of the current context");
    });
}

template <class Body>
CUresult on_event(const char* call, CUevent handle, Body body) {
    return on_device(call, [&](Context& context) {
        Event* event = event_of(context, handle);
        return event ? body(*event) : no_event();
    });
}

// A query runs some waiting operations, so a program that queries in a loop progresses.
CUresult query(Stream& stream) {
    if (stream.waiting.empty()) return CUDA_SUCCESS;
    const CUresult error = advance(stream);
    return error ? error : CUDA_ERROR_NOT_READY;
}

CUresult foreign() {
    return fail(CUDA_ERROR_INVALID_VALUE, "no such memory on the current context's device");
}

bool page_locked(const void* address, size_t bytes) {
    for (const Context* context : contexts)
        if (inside(context->locked, address, bytes)) return true;
    return false;
}

CUresult copy_up(Stream& stream, CUdeviceptr to, const void* from, size_t bytes) {
    Context& context = *stream.context;
    if (!inside(context.memory, (void*)to, bytes)) return foreign();
    std::shared_ptr<std::string> aside;  // pageable memory is read before the call returns
    if (!idle() && !page_locked(from, bytes)) aside = std::make_shared<std::string>((const char*)from, bytes);
    enqueue(stream, [&context, to, from, bytes, aside] {
        memcpy((void*)to, aside ? aside->data() : from, bytes);
        devices[context.device].bytes_up += bytes;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

// Whether memory of a device has 8 bytes, at a multiple of 8, that nothing has written.
bool has_poison(const char* memory, size_t bytes) {
    static const std::string poison(8, (char)POISON);
    const size_t first = (8 - (uintptr_t)memory % 8) % 8;
    for (size_t at = first; at + 8 <= bytes; at += 8)
        if (!memcmp(memory + at, poison.data(), 8)) return true;
    return false;
}

CUresult copy_down(Stream& stream, void* to, CUdeviceptr from, size_t bytes) {
    Context& context = *stream.context;
    if (!inside(context.memory, (void*)from, bytes)) return foreign();
    enqueue(stream, [&context, to, from, bytes] {
        memcpy(to, (void*)from, bytes);
        devices[context.device].bytes_down += bytes;
        devices[context.device].unwritten += has_poison((const char*)from, bytes);
        return CUDA_SUCCESS;
    });
    return page_locked(to, bytes) ? CUDA_SUCCESS : finish(stream);  // otherwise it returns after the write
}

template <class Word>
CUresult fill(Stream& stream, CUdeviceptr to, Word value, size_t n) {
    if (!inside(stream.context->memory, (void*)to, n * sizeof(Word))) return foreign();
    enqueue(stream, [to, value, n] {
        std::fill_n((Word*)to, n, value);
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

CUresult load(Context& context, const void* image, CUmodule* module) {
    const auto* bytes = (const unsigned char*)image;
    constexpr unsigned short CUDA_MACHINE = 190;
    unsigned short machine, entry_bytes, entries;
    unsigned long long table;  // of sections, at the end of the file
    if (memcmp(bytes, "\177ELF", 4)) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&machine, bytes + 18, sizeof machine);
    memcpy(&table, bytes + 40, sizeof table);
    memcpy(&entry_bytes, bytes + 58, sizeof entry_bytes);
    memcpy(&entries, bytes + 60, sizeof entries);
    if (machine == CUDA_MACHINE) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const size_t size = table + (size_t)entry_bytes * entries;
    // Open while loaded, because dlopen identifies files by name.
    const int file = memfd_create("module", MFD_CLOEXEC);
    if (file < 0 || write(file, image, size) != (ssize_t)size)
        return fail(CUDA_ERROR_OPERATING_SYSTEM, "no memory for a module");
    void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        close(file);
        return fail(CUDA_ERROR_INVALID_IMAGE, dlerror());
    }
    *module = (CUmodule) new Module{file, library, &context, {}};
    return CUDA_SUCCESS;
}

bool find_memory(const void* owner, const void* address, const void* bounds[2]) {
    const auto* found = find(((const Context*)owner)->memory, address);
    if (!found) return false;
    bounds[0] = found->first;
    bounds[1] = found->first + found->second;
    return true;
}

// Stacks of earlier launches by their size, never unmapped: a thread may launch while the process ends.
std::mutex& stacks_lock = *new std::mutex;
std::multimap<size_t, char*>& kept_stacks = *new std::multimap<size_t, char*>;

char* take_stacks(size_t bytes) {
    const std::lock_guard<std::mutex> guard(stacks_lock);
    const auto found = kept_stacks.find(bytes);
    if (found == kept_stacks.end()) return nullptr;
    char* const memory = found->second;
    kept_stacks.erase(found);
    return memory;
}

void keep_stacks(char* memory, size_t bytes) {
    const std::lock_guard<std::mutex> guard(stacks_lock);
    kept_stacks.emplace(bytes, memory);
}

CUresult run(const Function& function, cuda_cpu::Launch how, const std::vector<char>& arguments) {
    how.arguments = arguments.data();
    how.argument_bytes = arguments.size();
    how.os_threads = number("CUDA_CPU_THREADS", std::thread::hardware_concurrency());
    how.order = number("CUDA_CPU_ORDER", 0);
    how.find_memory = find_memory;
    how.take_stacks = take_stacks;
    how.keep_stacks = keep_stacks;
    how.owner = function.context;
    const char* error = function.launch(&how);
    if (!error && !guards_hold(function.context->memory)) error = "wrote outside of its arrays";
    if (!error) return CUDA_SUCCESS;
    fprintf(stderr, "emulated CUDA device %d: %s: %s\n", function.context->device, function.name.c_str(),
            error);
    return fail(CUDA_ERROR_LAUNCH_FAILED, function.name + ": " + error);
}

void destroy(Context* context) {
    for (Stream* stream : context->streams)
        if (stream != &context->standard) delete stream;
    for (const auto& [memory, bytes] : context->memory) {
        release(memory, bytes);
        devices[context->device].used -= bytes;
    }
    for (const auto& [memory, bytes] : context->locked) release(memory, bytes);
    for (auto event = events.begin(); event != events.end();)
        event = (*event)->context == context ? events.erase(event) : std::next(event);
    if (!current.empty() && current.back() == context) current.pop_back();
    contexts.erase(context);
    delete context;
}

}  // namespace

extern "C" {

// Calls on a device since DPMIX_EMULATED_FAIL changed.
int dpmix_emulated_calls(int device) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    return idle() ? devices[device].idle_calls : devices[device].calls["any"];
}

// Waits for events of a device since the start of the process in which the thread sleeps (1) or spins (0: and queries).
unsigned dpmix_emulated_waits(int device, int sleeps) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    return sleeps ? devices[device].sleeping : devices[device].spinning;
}

// Asynchronous copies of a device since the start of the process that wait, because their host memory is not
// page-locked (0), and copies to the host of memory that nothing has written (1).
unsigned dpmix_emulated_faults(int device, int unwritten) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    return unwritten ? devices[device].unwritten : devices[device].pageable;
}

// Bytes copied to (direction 0) or from (1) a device since the start of the process.
unsigned long long dpmix_emulated_bytes(int device, int direction) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    return direction ? devices[device].bytes_down : devices[device].bytes_up;
}

// ---- Devices

CUresult cuInit(unsigned) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int* version) {
    *version = (int)number("DPMIX_EMULATED_DRIVER", CUDA_VERSION);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
    *n = device_count();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
    snprintf(name, bytes, "emulated CUDA device");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
    snprintf(id, bytes, "0000:%02X:00.0", device);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
    *bytes = memory_of(device);
    return CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    static const std::map<int, int> values = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},  // kHz
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    };
    const auto found = values.find(attribute);
    if (found == values.end()) return fail(CUDA_ERROR_NOT_SUPPORTED, "an attribute the emulation has not");
    *value = found->second;
    return CUDA_SUCCESS;
}

// ---- Contexts. The context of a dead device can be pushed and popped; destroying it returns the error and
// frees.

CUresult cuCtxCreate(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice device) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (fails(device, "cuCtxCreate"))
        return fail(CUDA_ERROR_ECC_UNCORRECTABLE, "the device was made to fail");
    auto* made = new Context(device);
    contexts.insert(made);
    current.push_back(made);
    *context = (CUcontext)made;
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext handle) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    auto* context = (Context*)handle;
    if (!contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
    const bool dead = fails(context->device, "cuCtxDestroy");
    const CUresult error = dead ? CUDA_ERROR_ECC_UNCORRECTABLE : finish(*context);
    destroy(context);
    return error;
}
CUresult cuCtxDetach(CUcontext context) { return cuCtxDestroy(context); }  // each context is attached once
CUresult cuCtxPushCurrent(CUcontext context) {
    const std::lock_guard<std::recursive_mutex> held(lock);
    if (!contexts.count((Context*)context)) return CUDA_ERROR_INVALID_CONTEXT;
    current.push_back((Context*)context);
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
    if (current.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = (CUcontext)current.back();
    current.pop_back();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current.empty() ? nullptr : (CUcontext)current.back();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    return on_device(__func__, [&](Context& context) {
        *device = context.device;
        return CUDA_SUCCESS;
    });
}
CUresult cuCtxSynchronize(void) {
    return on_device(__func__, [](Context& context) { return finish(context); });
}

// ---- Memory

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) {
    return on_device(__func__, [&](Context& context) {
        const size_t used = devices[context.device].used;
        *total = memory_of(context.device);
        *free_bytes = *total > used ? *total - used : 0;
        return CUDA_SUCCESS;
    });
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
    return on_device(__func__, [&](Context& context) {
        if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        Device& device = devices[context.device];
        const size_t total = memory_of(context.device);
        if (device.used > total || bytes > total - device.used) return CUDA_ERROR_OUT_OF_MEMORY;
        char* memory = allocate(bytes);
        if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
        device.used += bytes;
        context.memory[memory] = bytes;
        *address = (CUdeviceptr)memory;
        return CUDA_SUCCESS;
    });
}
CUresult cuMemFree(CUdeviceptr address) {
    return on_device(__func__, [&](Context& context) {
        const auto found = context.memory.find((const char*)address);
        if (found == context.memory.end()) return foreign();
        const CUresult error = finish(context);
        devices[context.device].used -= found->second;
        release(found->first, found->second);
        context.memory.erase(found);
        return error;
    });
}
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    return on_device(__func__, [&](Context& context) {
        char* memory = bytes ? allocate(bytes) : nullptr;
        if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
        context.locked[memory] = bytes;
        *address = memory;
        return CUDA_SUCCESS;
    });
}
CUresult cuMemAllocHost(void** address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }
CUresult cuMemFreeHost(void* address) {
    return on_device(__func__, [&](Context& context) {
        const auto found = context.locked.find((const char*)address);
        if (found == context.locked.end())
            return fail(CUDA_ERROR_INVALID_VALUE, "no such page-locked memory");
        const CUresult error = finish(context);
        release(found->first, found->second);
        context.locked.erase(found);
        return error;
    });
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
    return on_device(__func__, [&](Context& context) {
        const CUresult error = copy_up(context.standard, to, from, bytes);
        return error ? error : finish(context.standard);
    });
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
    return on_device(__func__, [&](Context& context) {
        const CUresult error = copy_down(context.standard, to, from, bytes);
        return error ? error : finish(context.standard);
    });
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream handle) {
    return on_stream(__func__, handle, [&](Stream& stream) {
        devices[stream.context->device].pageable += !page_locked(from, bytes);
        return copy_up(stream, to, from, bytes);
    });
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream handle) {
    return on_stream(__func__, handle, [&](Stream& stream) {
        devices[stream.context->device].pageable += !page_locked(to, bytes);
        return copy_down(stream, to, from, bytes);
    });
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t n) {
    return on_device(__func__, [&](Context& context) { return fill(context.standard, to, value, n); });
}
CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t n) {
    return on_device(__func__, [&](Context& context) { return fill(context.standard, to, value, n); });
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream handle) {
    return on_stream(__func__, handle, [&](Stream& stream) { return fill(stream, to, value, n); });
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream handle) {
    return on_stream(__func__, handle, [&](Stream& stream) { return fill(stream, to, value, n); });
}

// ---- Streams and events

CUresult cuStreamCreate(CUstream* handle, unsigned flags) {
    return on_device(__func__, [&](Context& context) {
        auto* made = new Stream{&context, !(flags & CU_STREAM_NON_BLOCKING), {}};
        context.streams.insert(made);
        *handle = (CUstream)made;
        return CUDA_SUCCESS;
    });
}
CUresult cuStreamDestroy(CUstream handle) {
    return on_stream(__func__, handle, [](Stream& stream) {
        Context& context = *stream.context;
        if (&stream == &context.standard) return CUDA_ERROR_INVALID_HANDLE;
        const CUresult error = finish(stream);
        context.streams.erase(&stream);
        delete &stream;
        return error;
    });
}
CUresult cuStreamSynchronize(CUstream handle) {
    return on_stream(__func__, handle, [](Stream& stream) { return finish(stream); });
}
CUresult cuStreamQuery(CUstream handle) {
    return on_stream(__func__, handle, [](Stream& stream) { return query(stream); });
}
CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
    return on_stream(__func__, handle, [&](Stream& stream) {
        const Event* event = event_of(*stream.context, event_handle);
        if (!event) return no_event();
        if (event->last && !event->last->done) wait_for(stream, event->last);
        return CUDA_SUCCESS;
    });
}
CUresult cuEventCreate(CUevent* handle, unsigned flags) {
    return on_device(__func__, [&](Context& context) {
        const bool timed = !(flags & CU_EVENT_DISABLE_TIMING), blocking = flags & CU_EVENT_BLOCKING_SYNC;
        auto* made = new Event{&context, timed, blocking, nullptr};
        events.insert(made);
        *handle = (CUevent)made;
        return CUDA_SUCCESS;
    });
}
CUresult cuEventDestroy(CUevent handle) {
    return on_event(__func__, handle, [](Event& event) {
        events.erase(&event);
        delete &event;
        return CUDA_SUCCESS;
    });
}
CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
    return on_stream(__func__, stream_handle, [&](Stream& stream) {
        Event* event = event_of(*stream.context, handle);
        if (!event) return no_event();
        enqueue(stream, [] { return CUDA_SUCCESS; });
        event->last = record(stream);
        return CUDA_SUCCESS;
    });
}
CUresult cuEventSynchronize(CUevent handle) {
    return on_event(__func__, handle, [](Event& event) {
        Device& device = devices[event.context->device];
        ++(event.blocking ? device.sleeping : device.spinning);
        return event.last ? finish(*event.last) : CUDA_SUCCESS;
    });
}
CUresult cuEventQuery(CUevent handle) {
    return on_event(__func__, handle, [](Event& event) {
        devices[event.context->device].spinning++;
        return !event.last || event.last->done ? CUDA_SUCCESS : query(*event.last->stream);
    });
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
    return on_event(__func__, from, [&](Event& start) {
        const Event* end = event_of(*start.context, to);
        if (!end) return no_event();
        if (!start.timed || !end->timed || !start.last || !end->last) return CUDA_ERROR_INVALID_HANDLE;
        if (!start.last->done || !end->last->done) return CUDA_ERROR_NOT_READY;
        *milliseconds = std::chrono::duration<float, std::milli>(end->last->time - start.last->time).count();
        return CUDA_SUCCESS;
    });
}

// ---- Modules and kernels

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return on_device(__func__, [&](Context& context) { return load(context, image, module); });
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
    return on_device(__func__, [&](Context& context) { return load(context, image, module); });
}
CUresult cuModuleUnload(CUmodule handle) {
    return on_device(__func__, [&](Context& context) {
        const CUresult error = finish(context);
        auto* module = (Module*)handle;
        for (const auto& [name, function] : module->functions) functions.erase(&function);
        dlclose(module->library);
        close(module->file);
        delete module;
        return error;
    });
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
    return on_device(__func__, [&](Context&) {
        Module& module = *(Module*)handle;
        void* symbol = dlsym(module.library, (std::string(name) + "__cpu").c_str());
        if (!symbol) return CUDA_ERROR_NOT_FOUND;
        module.functions[name] = {(cuda_cpu::LaunchFunction)symbol, name, module.context};
        functions.insert(&module.functions[name]);
        *function = (CUfunction)&module.functions[name];
        return CUDA_SUCCESS;
    });
}
// PyCUDA gives the shape at the launch too.
CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream_handle, void** separate, void** extra) {
    return on_stream(__func__, stream_handle, [&](Stream& stream) {
        const auto* function = (const Function*)handle;
        if (!functions.count(function) || function->context != stream.context)
            return fail(CUDA_ERROR_INVALID_HANDLE,
                        "no kernel of the current context; is its module still there?");
        if (shared_bytes || separate)
            return fail(CUDA_ERROR_NOT_SUPPORTED,
                        "the emulation has no dynamic shared memory or kernelParams");
        const char* packed = nullptr;
        size_t bytes = 0;
        for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = (const char*)extra[1];
            if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(const size_t*)extra[1];
        }
        const cuda_cpu::Launch how = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
        const std::vector<char> arguments(packed, packed + bytes);
        enqueue(stream, [function, how, arguments] { return run(*function, how, arguments); });
        return CUDA_SUCCESS;
    });
}

// ---- Errors

CUresult cuGetErrorString(CUresult error, const char** text) {
    static std::map<CUresult, std::string> texts = {
        {CUDA_SUCCESS, "no error"},
        {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
        {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
        {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
        {CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"},
        {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
        {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
        {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
        {CUDA_ERROR_NOT_READY, "device not ready"},
    };
    static thread_local std::string made;  // the caller reads it while other threads fail
    const std::lock_guard<std::recursive_mutex> held(lock);
    const auto found = texts.find(error);
    made = found == texts.end() ? "error " + std::to_string((int)error) : found->second;
    if (!detail.empty()) made += " (emulated device: " + detail + ")";
    detail.clear();
    *text = made.c_str();
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** name) {
    *name = "CUDA_ERROR";
    return CUDA_SUCCESS;
}
CUresult cuProfilerStart(void) { return CUDA_SUCCESS; }
CUresult cuProfilerStop(void) { return CUDA_SUCCESS; }

}  // extern "C"
