// What the engine asks of the operating system about memory. There is an implementation for POSIX systems
// (pages_posix.cpp) and one for Windows (pages_windows.cpp); nothing else in the engine depends on the system.
#pragma once

#include <cstddef>
#include <filesystem>

namespace dpmix {

std::size_t page_size();  // bytes

// Asks for large pages of a mapped file that is only read. (Threads that write to a large page wait for each
// other.) The system then reads 4 MB at a time, whatever its read-ahead setting, and there are few faults.
// Only Linux has such a request.
void prefer_large_pages(const void* begin, std::size_t size);

// Releases whole pages of a mapped file; their values stay in the file.
void release_pages(char* begin, std::size_t size);

// Memory that is an unnamed file in a folder, initially 0. Nothing is left of the file, however the process
// ends. Throws a filesystem_error with the folder if the file cannot be made. All its space is allocated at
// once: if a disk fills up under a mapped file, the process ends without a message.
class MappedFile {
   public:
    MappedFile(const std::filesystem::path& folder, std::size_t size);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    void* begin() const { return begin_; }

   private:
    void* begin_ = nullptr;
#if defined(_WIN32)
    void* file_ = nullptr;  // its handle; the file is deleted when it is closed
#else
    std::size_t size_;
#endif
};

}  // namespace dpmix
