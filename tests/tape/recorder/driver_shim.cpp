// A stand-in for libcudart and the driver calls behind it: addresses and a byte budget, no GPU.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

namespace {
constexpr std::uint64_t kFirstAddress = 0x700000000000ULL;
constexpr std::uint64_t kAlignment = 2ULL << 20;
std::uint64_t g_capacity = ~0ULL >> 1;
std::uint64_t g_used = 0;
std::uint64_t g_next = kFirstAddress;
std::map<std::uint64_t, std::uint64_t> g_sizes;  // address or handle -> bytes

std::uint64_t reserve(std::uint64_t size) {
  std::uint64_t address = g_next;
  g_next += (size + kAlignment - 1) / kAlignment * kAlignment;
  return address;
}
}  // namespace

extern "C" {
void shim_set_capacity(std::uint64_t bytes) { g_capacity = bytes; }

cudaError_t cudaMalloc(void** pointer, size_t size) {
  if (g_used + size > g_capacity) return cudaErrorMemoryAllocation;
  std::uint64_t address = reserve(size);
  g_sizes[address] = size;
  g_used += size;
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  auto found = g_sizes.find(reinterpret_cast<std::uint64_t>(pointer));
  if (found == g_sizes.end()) return cudaErrorInvalidValue;
  g_used -= found->second;
  g_sizes.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = g_capacity - g_used;
  *total = g_capacity;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = g_capacity;
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "shim"; }
const char* cudaGetErrorString(cudaError_t) { return "shim"; }

}

// Calls that need no answer, and calls that an allocation never makes, share one body each.
extern "C" {
static CUresult drv_ok() { return CUDA_SUCCESS; }
static CUresult drv_reserve(CUdeviceptr* pointer, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *pointer = reserve(size);
  return CUDA_SUCCESS;
}
static CUresult drv_create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*,
                           unsigned long long) {
  if (g_used + size > g_capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  std::uint64_t id = reserve(1);
  g_sizes[id] = size;
  g_used += size;
  *handle = id;
  return CUDA_SUCCESS;
}
static CUresult drv_release(CUmemGenericAllocationHandle handle) {
  auto found = g_sizes.find(handle);
  if (found == g_sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  g_used -= found->second;
  g_sizes.erase(found);
  return CUDA_SUCCESS;
}
static CUresult drv_attribute(int* value, CUdevice_attribute, CUdevice) { *value = 0; return CUDA_SUCCESS; }
static CUresult drv_error(CUresult, const char** text) { *text = "shim"; return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long, cudaDriverEntryPointQueryResult* status) {
  void* found = reinterpret_cast<void*>(&drv_ok);
  if (!std::strcmp(symbol, "cuMemAddressReserve")) found = reinterpret_cast<void*>(&drv_reserve);
  if (!std::strcmp(symbol, "cuMemCreate")) found = reinterpret_cast<void*>(&drv_create);
  if (!std::strcmp(symbol, "cuMemRelease")) found = reinterpret_cast<void*>(&drv_release);
  if (!std::strcmp(symbol, "cuDeviceGetAttribute")) found = reinterpret_cast<void*>(&drv_attribute);
  if (!std::strcmp(symbol, "cuGetErrorString")) found = reinterpret_cast<void*>(&drv_error);
  *function = found;
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
