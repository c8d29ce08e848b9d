#include "athanor/train/tensor_parts.h"

#include "athanor/base/error.h"

namespace athanor {

namespace {

const BucketMember& member_named(const Graph& graph, const std::string& name) {
  for (const BucketTable& table : graph.tables) {
    for (const BucketMember& member : table.members) {
      if (member.name == name) return member;
    }
  }
  ATHANOR_ASSERT(false, "no table of {} has {}", graph.name, name);
}

}  // namespace

std::vector<TensorPart> parts_of(const Graph& graph, const Value& value) {
  const bool gradient = value.role == Role::parameter_gradient;
  if ((!gradient && value.role != Role::parameter) || value.name.find('+') == std::string::npos) {
    return {{value.name, 0, value.shape}};
  }
  std::string names = value.name;
  const std::string prefix = gradient && names.starts_with("d.") ? "d." : "";
  names.erase(0, prefix.size());
  std::vector<TensorPart> parts;
  int64_t first = 0;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('+', begin), names.size());
    const BucketMember& member = member_named(graph, names.substr(begin, end - begin));
    parts.push_back({prefix + member.name, first, member.shape});
    first += member.length();
    begin = end + 1;
  }
  return parts;
}

}  // namespace athanor
