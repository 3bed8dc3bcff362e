// Replays events through torch's own CUDA caching allocator, and prints what it holds after each.
//
// stdin:  <bytes of the card> <event> <event> ...     size >= 0: allocate; ~i: free the i-th allocation
// stdout: <allocated bytes> <reserved bytes> <peak of the first> <peak of the second> [OOM]    one line per event
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <vector>

extern "C" void shim_set_capacity(std::uint64_t);

int main() {
  using namespace c10::cuda::CUDACachingAllocator;
  std::uint64_t capacity;
  std::cin >> capacity;
  shim_set_capacity(capacity);
  c10::cuda::detail::init_p2p_access_cache(1);
  init(1);
  std::vector<void*> pointers;
  long long event;
  while (std::cin >> event) {
    const char* note = "";
    if (event >= 0) {
      void* pointer = nullptr;
      try {
        pointer = raw_alloc(static_cast<size_t>(event));
      } catch (const c10::OutOfMemoryError&) {
        note = " OOM";
      }
      pointers.push_back(pointer);
    } else {
      raw_delete(pointers[~event]);
    }
    auto stats = getDeviceStats(0);
    const auto& allocated = stats.allocated_bytes[0];
    const auto& reserved = stats.reserved_bytes[0];
    std::printf("%lld %lld %lld %lld%s\n", (long long)allocated.current, (long long)reserved.current,
                (long long)allocated.peak, (long long)reserved.peak, note);
  }
}
