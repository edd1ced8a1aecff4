// Replaces the global operator new: large blocks request huge pages from the kernel. A prediction of ten million
// vertices touches a gigabyte once; with small pages, the page faults take longer than the computation.

#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLarge = 2 * kHugePage;

// Runs before main, on one thread.
const bool kTuned = [] {
  // Large blocks always get their own mapping: in the heap, their alignment would fragment it.
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLarge));
  // The heap keeps free memory: sweeps and trials repeatedly free and allocate the same sizes.
  ::mallopt(M_TRIM_THRESHOLD, 1 << 28);
  return true;
}();

void* allocate(std::size_t size) {
  if (size < kLarge) return std::malloc(size == 0 ? 1 : size);
  const std::size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
  if (rounded < size) return nullptr;
  void* block = std::aligned_alloc(kHugePage, rounded);
  if (block != nullptr) ::madvise(block, rounded, MADV_HUGEPAGE);  // only advice: without huge pages it is slower
  return block;
}

}  // namespace

void* operator new(std::size_t size) {
  while (true) {
    if (void* block = allocate(size)) return block;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
