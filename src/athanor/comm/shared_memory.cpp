#include "athanor/comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {
namespace {

uint32_t place_of(uint32_t region) {
  return region % RegionTable::places;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

Descriptor::~Descriptor() {
  close();
}

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

Mapping::Mapping(const Descriptor& file, uint64_t offset, uint64_t bytes) : bytes_(bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.number(),
                          static_cast<off_t>(offset));
  if (data == MAP_FAILED)
    throw_user_error(fmt::format("cannot map {} bytes of shared memory: {}", bytes, std::strerror(errno)),
                     "use a smaller model, micro-batch or sequence, or fewer ranks on this machine");
  data_ = static_cast<std::byte*>(data);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Descriptor create_memory_file(const char* name, uint64_t bytes) {
  Descriptor file(memfd_create(name, MFD_CLOEXEC));
  if (!file.is_open() || ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) {
    const int problem = errno;
    throw_user_error(
        fmt::format("cannot create {} bytes of shared memory: {}", bytes, std::strerror(problem)),
        problem == EFBIG ? "raise the limit on the size of files (ulimit -f)"
                         : "raise the limit on open files (ulimit -n) or use a smaller model");
  }
  return file;
}

std::optional<Descriptor> open_memory_file(pid_t process, int number) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, number);
  // Opening might block or do something if it is anything else.
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  return file;
}

uint64_t size_of_file(const Descriptor& file) {
  struct stat status{};
  if (fstat(file.number(), &status) != 0 || status.st_size < 0) return 0;
  return static_cast<uint64_t>(status.st_size);
}

std::shared_ptr<std::byte> RegionRegistry::allocate(int64_t bytes) {
  ATHANOR_ASSERT(bytes >= 0, "{} bytes", bytes);
  const auto physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  // The system would promise more than it has and kill the process later.
  if (bytes > physical)
    throw_user_error(
        fmt::format("not enough memory: {} bytes ({:.2f} GiB) asked for, the machine has {:.2f} GiB", bytes,
                    static_cast<double>(bytes) / (1 << 30), static_cast<double>(physical) / (1 << 30)),
        "use a smaller model, micro-batch or sequence, or recomputation");
  PlanRegion region;
  const uint64_t length = static_cast<uint64_t>(std::max<int64_t>(bytes, 1));
  region.file = create_memory_file("athanor-region", length);
  region.mapping = Mapping(region.file, 0, length);
  madvise(region.mapping.data(), length, MADV_HUGEPAGE);  // a hint
  std::byte* const data = region.mapping.data();

  const std::lock_guard lock(mutex_);
  for (uint32_t place = 1; place < RegionTable::places; ++place) {
    RegionTable::Entry& entry = table_.entries[place];
    if (entry.region.load(std::memory_order_relaxed) != 0) continue;
    // Never the number of an earlier region: a peer may still know that one.
    region.number = ++versions_ * RegionTable::places + place;
    entry.file.store(region.file.number(), std::memory_order_relaxed);
    entry.bytes.store(length, std::memory_order_relaxed);
    entry.region.store(region.number, std::memory_order_release);
    regions_.emplace(data, std::move(region));
    return {data, [self = shared_from_this()](std::byte* pointer) { self->release(pointer); }};
  }
  throw_user_error(fmt::format("more than {} pieces of shared memory", RegionTable::places - 1));
}

void RegionRegistry::release(const std::byte* data) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(data);
  table_.entries[place_of(found->second.number)].region.store(0, std::memory_order_release);
  regions_.erase(found);
}

std::optional<SharedPlace> RegionRegistry::find(const std::byte* data, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto after = regions_.upper_bound(data);
  if (after == regions_.begin()) return std::nullopt;
  const auto& [begin, region] = *--after;
  const auto offset = static_cast<uint64_t>(data - begin);
  if (offset > region.mapping.bytes() || bytes > region.mapping.bytes() - offset) return std::nullopt;
  return SharedPlace{region.number, offset};
}

const std::byte* PeerRegions::resolve(SharedPlace place, uint64_t bytes) {
  Known& known = known_[place_of(place.region)];
  if (known.number != place.region) {
    const RegionTable::Entry& entry = table_.entries[place_of(place.region)];
    const uint64_t length = entry.bytes.load(std::memory_order_relaxed);
    if (place.region == 0 || entry.region.load(std::memory_order_acquire) != place.region)
      throw Error(ErrorKind::restart_worker,
                  fmt::format("rank {} (process {}) has no shared region {}", rank_, process_, place.region));
    const auto file = open_memory_file(process_, entry.file.load(std::memory_order_relaxed));
    if (!file || length == 0 || size_of_file(*file) < length)
      throw Error(ErrorKind::restart_worker,
                  fmt::format("cannot read the memory of rank {} (process {})", rank_, process_));
    known.mapping = Mapping(*file, 0, length);
    known.number = place.region;
  }
  if (place.offset > known.mapping.bytes() || bytes > known.mapping.bytes() - place.offset)
    throw Error(ErrorKind::restart_worker,
                fmt::format("rank {} (process {}) named bytes beyond its shared region", rank_, process_));
  return known.mapping.data() + place.offset;
}

}  // namespace athanor
