// Memory that nobody has touched yet.

#pragma once

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mixdim {

// malloc gives 32 MB and more fresh from the system, every time, and each of its pages of 4 kB costs a fault when it
// is written first: more than to write it. In pages of 2 MB, where Linux has them, the same memory costs a third. Asks
// for them; only where all of it will be written, so that no more memory is taken than was asked for.
inline void ask_for_large_pages(float* memory, int64_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLargePage = 2 << 20, kAlwaysFresh = 32 << 20;
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory), end = start + count * sizeof(float);
  if (end - start < kAlwaysFresh) return;
  const uintptr_t first = (start + kLargePage - 1) / kLargePage * kLargePage, last = end / kLargePage * kLargePage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: it may fail, or do nothing
#else
  (void)memory, (void)count;
#endif
}

}  // namespace mixdim
