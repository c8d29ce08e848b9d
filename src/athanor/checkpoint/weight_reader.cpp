#include "athanor/checkpoint/weight_reader.h"

#include <algorithm>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"

namespace athanor {

int64_t WeightEntry::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

const WeightEntry* WeightReader::find(std::string_view name) const {
  const auto all = entries();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const WeightEntry& entry, auto wanted) { return entry.name < wanted; });
  return found == all.end() || found->name != name ? nullptr : &*found;
}

CheckpointWeights::CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
  for (const SafetensorsEntry& entry : checkpoint_.tensors()) {
    if (entry.dtype) entries_.push_back({entry.name, *entry.dtype, entry.shape});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const WeightEntry& a, const WeightEntry& b) { return a.name < b.name; });
}

void CheckpointWeights::read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const {
  const SafetensorsFile& file = checkpoint_.file();
  read_converted(file, *file.find(entry.name), 0, entry.name, dtype, out);
}

void read_converted(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first,
                    const std::string& name, DType dtype, std::span<std::byte> out) {
  constexpr int64_t piece_elements = int64_t{1} << 19;
  const DType from = *entry.dtype;
  const auto from_size = static_cast<int64_t>(size_of(from)), to_size = static_cast<int64_t>(size_of(dtype));
  if (from == dtype) return file.read_part(entry, first * from_size, out);
  const int64_t elements = static_cast<int64_t>(out.size()) / to_size;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(elements, piece_elements) * from_size));
  for (int64_t done = 0; done < elements; done += piece_elements) {
    const int64_t count = std::min(piece_elements, elements - done);
    const auto piece = std::span(buffer).first(static_cast<size_t>(count * from_size));
    file.read_part(entry, (first + done) * from_size, piece);
    const int64_t lost = convert_floats(
        from, piece, dtype,
        out.subspan(static_cast<size_t>(done * to_size), static_cast<size_t>(count * to_size)));
    if (lost >= 0) {
      refuse_overflow(file.path(), name, first + done + lost, float_at(from, piece, lost), dtype);
    }
  }
}

void refuse_overflow(const std::string& path, const std::string& name, int64_t element, double value,
                     DType dtype) {
  throw_user_error(fmt::format("'{}': element {} of {} is {:g}, which is too large for {}", path, element,
                               name, value, name_of(dtype)),
                   "take fp32 or bf16");
}

}  // namespace athanor
