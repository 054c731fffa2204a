// Deliberate mistakes that the sanitizers must find (sanitized.py).

#include <climits>
#include <thread>

static int shared = 0;

extern "C" int read_beyond_the_end(int n) {
    const int* numbers = new int[static_cast<unsigned>(n)]();
    const int found = numbers[n];
    delete[] numbers;
    return found;
}

extern "C" int overflow(int n) { return INT_MAX - 1 + n; }

extern "C" int race(int n) {
    std::thread other([n] { shared += n; });
    shared += n;
    other.join();
    return shared;
}
