#include "athanor/kernels/cpu/bucket_tiles.h"

#include <algorithm>

namespace athanor::cpu {

BucketTiles::BucketTiles(const BucketTable& table) {
  for (const BucketMember& member : table.members) {
    const int64_t elements = member.length();
    const auto index = static_cast<int64_t>(members.size()), first = static_cast<int64_t>(tiles.size());
    for (int64_t begin = 0; begin < elements; begin += length)
      tiles.push_back({index, member.offset + begin, std::min(length, elements - begin)});
    const bool trust = member.role == ParameterRole::matrix || member.role == ParameterRole::embedding;
    members.push_back({member.weight_decay, member.learning_rate_factor, trust, first,
                       static_cast<int64_t>(tiles.size()) - first});
  }
}

}  // namespace athanor::cpu
