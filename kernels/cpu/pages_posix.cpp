#include "pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <system_error>

namespace dpmix {
namespace {

// Allocates the space of a file on the disk; returns 0 or the error's number.
int allocate(int file, std::size_t size) {
    const off_t length = static_cast<off_t>(size);
#if defined(__APPLE__)
    fstore_t space = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, length, 0};
    return ::fcntl(file, F_PREALLOCATE, &space) < 0 || ::ftruncate(file, length) < 0 ? errno : 0;
#else
    int error;
    do error = ::posix_fallocate(file, 0, length);
    while (error == EINTR);
    return error;
#endif
}

[[noreturn]] void fail(int error, const std::filesystem::path& folder) {
    const std::error_code code(error, std::generic_category());
    throw std::filesystem::filesystem_error("no room for a file", folder, code);
}

}  // namespace

std::size_t page_size() {
    static const std::size_t size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

void prefer_large_pages([[maybe_unused]] const void* begin, [[maybe_unused]] std::size_t size) {
#if defined(MADV_HUGEPAGE)
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(begin) % page_size();
    ::madvise(static_cast<char*>(const_cast<void*>(begin)) - beyond, size + beyond, MADV_HUGEPAGE);
#endif
}

void release_pages(char* begin, std::size_t size) { ::madvise(begin, size, MADV_DONTNEED); }

MappedFile::MappedFile(const std::filesystem::path& folder, std::size_t size) : size_(size) {
    std::string name = folder / "dpmix-XXXXXX";
    const int file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) fail(errno, folder);
    ::unlink(name.c_str());
    int error = allocate(file, size);
    void* memory = MAP_FAILED;
    if (error == 0) {
        memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (error != 0) fail(error, folder);
    begin_ = memory;
}

MappedFile::~MappedFile() { ::munmap(begin_, size_); }

}  // namespace dpmix
