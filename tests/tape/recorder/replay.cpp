// Replays events through torch's own CUDA caching allocator, and prints what it holds after each.
//
// stdin:  <bytes of the card> <event> <event> ...     size >= 0: allocate; size@n: for stream n; ~i: free the i-th
// stdout: <allocated bytes> <reserved bytes> <peak of the first> <peak of the second> [OOM]    one line per event
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/PeerToPeerAccess.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
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
  std::string word;
  while (std::cin >> word) {
    const long long event = std::stoll(word);
    const size_t at = word.find('@');
    const char* note = "";
    if (event >= 0) {
      void* pointer = nullptr;
      try {
        if (at == std::string::npos) {
          pointer = raw_alloc(static_cast<size_t>(event));
        } else {  // the allocator only compares streams
          auto stream = reinterpret_cast<cudaStream_t>(std::stoull(word.substr(at + 1)));
          pointer = raw_alloc_with_stream(static_cast<size_t>(event), stream);
        }
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
