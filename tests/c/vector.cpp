// A C++ program: an allocator for the containers of the standard library, over a heap of its own.
#include <hugeheap.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

struct Drop {
    void operator()(hh_heap *heap) const { hh_heap_drop(heap); }
};

template <class T> struct Allocator {
    using value_type = T;
    hh_heap *heap;

    explicit Allocator(hh_heap *given) : heap(given) {}
    template <class U> Allocator(const Allocator<U> &other) : heap(other.heap) {}

    T *allocate(std::size_t count) {
        if (count > SIZE_MAX / sizeof(T))
            throw std::bad_alloc();
        if (void *block = hh_heap_alloc(heap, count * sizeof(T)))
            return static_cast<T *>(block);
        throw std::bad_alloc();
    }
    void deallocate(T *block, std::size_t count) { hh_heap_free_sized(heap, block, count * sizeof(T)); }

    friend bool operator==(const Allocator &a, const Allocator &b) { return a.heap == b.heap; }
    friend bool operator!=(const Allocator &a, const Allocator &b) { return a.heap != b.heap; }
};

static void require(bool condition) {
    if (!condition)
        std::abort();
}

int main() {
    std::unique_ptr<hh_heap, Drop> heap(hh_heap_new(nullptr));
    require(heap != nullptr);
    std::vector<int, Allocator<int>> numbers{Allocator<int>(heap.get())};
    for (int number = 0; number < 1000000; number++)
        numbers.push_back(number);
    require(numbers[999999] == 999999);

    using Pair = std::pair<const int, std::string>;
    std::map<int, std::string, std::less<int>, Allocator<Pair>> map{Allocator<Pair>(heap.get())};
    for (int number = 0; number < 10000; number++)
        map[number * 7919 % 10007] = std::to_string(number);
    require(map.size() == 10000 && map[7919] == "1");

    bool refused = false;
    try {
        numbers.reserve(numbers.max_size() / 16);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    require(refused);
}
