#include "pages.hpp"

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <system_error>

namespace dpmix {
namespace {

// A new file that is deleted when its handle is closed, also at the end of the process.
HANDLE create(const std::filesystem::path& folder) {
    wchar_t name[MAX_PATH];
    if (::GetTempFileNameW(folder.c_str(), L"dpm", 0, name) == 0) return INVALID_HANDLE_VALUE;
    return ::CreateFileW(name, GENERIC_READ | GENERIC_WRITE, 0, nullptr, CREATE_ALWAYS,
                         FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
}

// Sets the end of a file, which allocates its space, and maps all of it; null if that fails.
void* map(HANDLE file, std::size_t size) {
    LARGE_INTEGER end;
    end.QuadPart = static_cast<LONGLONG>(size);
    if (!::SetFilePointerEx(file, end, nullptr, FILE_BEGIN) || !::SetEndOfFile(file)) return nullptr;
    const HANDLE mapping = ::CreateFileMappingW(file, nullptr, PAGE_READWRITE, 0, 0, nullptr);
    if (mapping == nullptr) return nullptr;
    void* memory = ::MapViewOfFile(mapping, FILE_MAP_ALL_ACCESS, 0, 0, size);
    const DWORD error = ::GetLastError();
    ::CloseHandle(mapping);  // the view keeps it
    ::SetLastError(error);
    return memory;
}

[[noreturn]] void fail(DWORD error, const std::filesystem::path& folder) {
    const std::error_code code(static_cast<int>(error), std::system_category());
    throw std::filesystem::filesystem_error("no room for a file", folder, code);
}

}  // namespace

std::size_t page_size() {
    static const std::size_t size = [] {
        SYSTEM_INFO info;
        ::GetSystemInfo(&info);
        return static_cast<std::size_t>(info.dwPageSize);
    }();
    return size;
}

void prefer_large_pages(const void*, std::size_t) {}

// Pages that are not locked leave the working set.
void release_pages(char* begin, std::size_t size) { ::VirtualUnlock(begin, size); }

MappedFile::MappedFile(const std::filesystem::path& folder, std::size_t size) {
    const HANDLE file = create(folder);
    if (file == INVALID_HANDLE_VALUE) fail(::GetLastError(), folder);
    begin_ = map(file, size);
    if (begin_ == nullptr) {
        const DWORD error = ::GetLastError();
        ::CloseHandle(file);
        fail(error, folder);
    }
    file_ = file;
}

MappedFile::~MappedFile() {
    ::UnmapViewOfFile(begin_);
    ::CloseHandle(file_);
}

}  // namespace dpmix
