#include "athanor/comm/algorithm.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/comm/algorithm_phases.h"
#include "athanor/comm/algorithm_tree.h"

namespace athanor {
namespace {

// What a piece of a message should measure so that the next step can begin while it still travels, and small
// enough to be read while it is in a second-level cache.
constexpr int64_t piece_bytes = 256 << 10;
// Below this many bytes in all (of all messages of a member) another message time costs more than the bytes.
constexpr int64_t one_shot_bytes = 64 << 10;
// Blocks at least this long are worth n - 1 message times of a ring between hosts.
constexpr int64_t ring_block_bytes = 64 << 10;

// The members of each host in the group's order, hosts in the order of their first member.
std::vector<std::vector<int>> members_by_host(const GroupShape& group) {
  std::vector<std::vector<int>> hosts;
  std::map<int, size_t> index;
  for (int member = 0; member < group.members(); ++member) {
    const auto [place, added] = index.try_emplace(group.hosts[static_cast<size_t>(member)], hosts.size());
    if (added) hosts.emplace_back();
    hosts[place->second].push_back(member);
  }
  return hosts;
}

bool is_even_grid(const std::vector<std::vector<int>>& hosts) {
  return hosts.size() > 1 && hosts[0].size() > 1 &&
         std::all_of(hosts.begin(), hosts.end(),
                     [&](const auto& host) { return host.size() == hosts[0].size(); });
}

bool has(CollectiveKind kind, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return false;
    case Algorithm::direct:
      return true;
    case Algorithm::one_shot:
      return kind == CollectiveKind::all_reduce;
    case Algorithm::ring:
    case Algorithm::halving_doubling:
      return has_reduction(kind) || kind == CollectiveKind::all_gather;
    case Algorithm::double_tree:
      return kind == CollectiveKind::all_reduce || kind == CollectiveKind::broadcast;
    case Algorithm::hierarchical:
      return has_reduction(kind) || kind == CollectiveKind::all_gather || kind == CollectiveKind::broadcast;
  }
  return false;
}

int64_t total_of(const CollectiveSpec& spec) {
  return std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0});
}

// Between hosts, one member on each. `bytes` of the whole vector.
Algorithm between_hosts(CollectiveKind kind, int64_t bytes, int hosts, bool narrow) {
  if (hosts == 2) return Algorithm::direct;
  if (kind == CollectiveKind::broadcast) return hosts > 3 ? Algorithm::double_tree : Algorithm::direct;
  const bool reduces = has_reduction(kind);
  if (kind == CollectiveKind::all_reduce && bytes * (hosts - 1) <= one_shot_bytes) return Algorithm::one_shot;
  if (reduces && narrow) return Algorithm::direct;  // elsewhere partial sums would travel, which are wide
  if (bytes / hosts >= ring_block_bytes) return Algorithm::ring;
  return kind == CollectiveKind::all_reduce && hosts > 8 ? Algorithm::double_tree
                                                         : Algorithm::halving_doubling;
}

class Planner {
 public:
  Planner(const CollectiveSpec& spec, const GroupShape& group, int member)
      : spec_(spec),
        group_(group),
        member_(member),
        algorithm_(choose_algorithm(spec, group)),
        builder_(spec, algorithm_, member),
        piece_(piece_bytes / static_cast<int64_t>(size_of(spec.wire))) {}

  Plan plan() {
    switch (spec_.kind) {
      case CollectiveKind::all_reduce:
        all_reduce();
        break;
      case CollectiveKind::all_gather:
        all_gather();
        break;
      case CollectiveKind::reduce_scatter:
        reduce_scatter();
        break;
      case CollectiveKind::all_to_all:
        all_to_all();
        break;
      case CollectiveKind::broadcast:
        broadcast();
        break;
      case CollectiveKind::send:
        builder_.send(spec_.root, contributions({{0, spec_.counts[0]}})({0, spec_.counts[0]}));
        break;
      case CollectiveKind::receive:
        builder_.receive(spec_.root, spec_.wire, builder_.output({0, spec_.counts[0]}));
        break;
    }
    return builder_.finish();
  }

 private:
  bool converts() const { return spec_.wire != spec_.dtype; }

  // The input in the wire type: where it is, or rounded in scratch. The ranges are all that will be asked
  // for.
  Locate contributions(const Ranges& ranges, int64_t shift = 0) {
    if (!converts())
      return [this, shift](ElementRange range) { return builder_.input({range.begin - shift, range.count}); };
    int64_t end = 0;
    for (const ElementRange& range : ranges) end = std::max(end, range.end() - shift);
    const PlanRegion rounded = builder_.scratch(spec_.wire, end);
    for (const ElementRange& range : ranges)
      builder_.copy(builder_.input({range.begin - shift, range.count}),
                    PlanBuilder::part(rounded, range.begin - shift, range.count));
    return [rounded, shift](ElementRange range) {
      return PlanBuilder::part(rounded, range.begin - shift, range.count);
    };
  }

  // Results as they travel: the output itself, or the wire type in scratch, from where write_results brings
  // them to the output.
  Locate results(int64_t count) {
    if (!converts()) return [this](ElementRange range) { return builder_.output(range); };
    travelling_ = builder_.scratch(spec_.wire, count);
    return [whole = travelling_](ElementRange range) {
      return PlanBuilder::part(whole, range.begin, range.count);
    };
  }
  void write_results() {
    if (converts()) builder_.copy(travelling_, builder_.output({0, travelling_.count}));
  }

  std::vector<int> everybody() const {
    std::vector<int> members(static_cast<size_t>(group_.members()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }
  // One block for each member, one after another.
  std::vector<Ranges> blocks_of(const std::vector<int64_t>& counts) const {
    std::vector<Ranges> blocks;
    int64_t begin = 0;
    for (const int64_t count : counts) {
      blocks.push_back({{begin, count}});
      begin += count;
    }
    return blocks;
  }
  std::vector<int64_t> parts(int64_t count, int n) const {
    return equal_parts(count, n, std::max<int64_t>(1, 64 / static_cast<int64_t>(size_of(spec_.wire))));
  }

  // Where the members stand when hosts and places inside a host are dimensions.
  struct Grid {
    std::vector<std::vector<int>> hosts;
    int host = 0, place = 0;
    std::vector<int> across() const {  // same place, every host
      std::vector<int> members;
      for (const auto& each : hosts) members.push_back(each[static_cast<size_t>(place)]);
      return members;
    }
    const std::vector<int>& inside() const { return hosts[static_cast<size_t>(host)]; }
  };
  Grid grid() const {
    Grid grid{members_by_host(group_), 0, 0};
    for (size_t host = 0; host < grid.hosts.size(); ++host)
      for (size_t place = 0; place < grid.hosts[host].size(); ++place)
        if (grid.hosts[host][place] == member_) {
          grid.host = static_cast<int>(host);
          grid.place = static_cast<int>(place);
        }
    return grid;
  }
  // The blocks of everybody who stands at the same place of another host, for each place.
  std::vector<Ranges> blocks_by_place(const Grid& grid, const std::vector<Ranges>& blocks) const {
    std::vector<Ranges> by_place(grid.inside().size());
    for (const auto& host : grid.hosts)
      for (size_t place = 0; place < host.size(); ++place) {
        const Ranges& block = blocks[static_cast<size_t>(host[place])];
        by_place[place].insert(by_place[place].end(), block.begin(), block.end());
      }
    return by_place;
  }
  std::vector<Ranges> blocks_across(const Grid& grid, const std::vector<Ranges>& blocks) const {
    std::vector<Ranges> across;
    for (const int member : grid.across()) across.push_back(blocks[static_cast<size_t>(member)]);
    return across;
  }
  Algorithm across_algorithm(const Grid& grid, CollectiveKind kind) const {
    const auto hosts = static_cast<int>(grid.hosts.size());
    const int64_t bytes = total_of(spec_) * static_cast<int64_t>(size_of(accumulator_of(spec_.dtype))) /
                          static_cast<int64_t>(grid.inside().size());
    // Partial sums are never narrow.
    return between_hosts(kind, bytes, hosts, false);
  }
  // Partial sums of the given ranges, in scratch.
  Locate partials(const Ranges& ranges) {
    const PlanRegion whole = builder_.scratch(builder_.accumulator(), count_of(ranges));
    return [whole, ranges](ElementRange range) {
      int64_t before = 0;
      for (const ElementRange& each : ranges) {
        if (range.begin >= each.begin && range.end() <= each.end()) break;
        before += each.count;
      }
      for (const ElementRange& each : ranges)
        if (range.begin >= each.begin && range.end() <= each.end())
          return PlanBuilder::part(whole, before + range.begin - each.begin, range.count);
      ATHANOR_ASSERT(range.count == 0, "elements {} ... {} have no partial sum", range.begin, range.end());
      return PlanBuilder::part(whole, 0, 0);
    };
  }

  void all_reduce() {
    const int64_t count = spec_.counts[0];
    const Locate source = contributions({{0, count}}), result = results(count);
    const int n = group_.members();
    if (algorithm_ == Algorithm::one_shot) {
      sum_everywhere(source, result, count);
    } else if (algorithm_ == Algorithm::double_tree) {
      tree_all_reduce(builder_, everybody(), member_, count, piece_, source, result);
    } else if (algorithm_ == Algorithm::hierarchical) {
      const Grid grid = this->grid();
      const auto places = static_cast<int>(grid.inside().size()), hosts = static_cast<int>(grid.hosts.size());
      const Phase inside{grid.inside(), grid.place, blocks_of(parts(count, places)), piece_};
      const Ranges& own = inside.block(grid.place);
      const Locate partial = partials(own);
      reduce_scatter_phase(builder_, Algorithm::direct, inside, source, partial);
      std::vector<Ranges> shares = blocks_of(parts(count_of(own), hosts));
      for (Ranges& share : shares) share[0].begin += own[0].begin;
      const Phase across{grid.across(), grid.host, shares, piece_};
      const Algorithm algorithm = across_algorithm(grid, CollectiveKind::reduce_scatter);
      reduce_scatter_phase(builder_, algorithm, across, partial, result);
      all_gather_phase(builder_, algorithm, across, result, result);
      all_gather_phase(builder_, Algorithm::direct, inside, result, result);
    } else if (const Phase phase{everybody(), member_, blocks_of(parts(count, n)), piece_};
               algorithm_ == Algorithm::direct) {
      direct_all_reduce(builder_, phase, source, result);
    } else {
      reduce_scatter_phase(builder_, algorithm_, phase, source, result);
      all_gather_phase(builder_, algorithm_, phase, result, result);
    }
    write_results();
  }

  void sum_everywhere(const Locate& source, const Locate& result, int64_t count) {
    const int n = group_.members();
    PlanRegion own = source({0, count});
    // In place, everybody would wait for everybody else to have read what it is about to overwrite.
    if (!converts()) {
      const PlanRegion kept = builder_.scratch(spec_.wire, count);
      builder_.copy(own, kept);
      own = kept;
    }
    for (int k = 1; k < n; ++k) builder_.send((member_ + k) % n, own);
    std::vector<PlanOperand> operands;
    for (int member = 0; member < n; ++member)
      operands.push_back(member == member_ ? PlanBuilder::local(own)
                                           : PlanBuilder::from(member, own.dtype, count));
    builder_.reduce(operands, result({0, count}));
  }

  void reduce_scatter() {
    const std::vector<Ranges> blocks = blocks_of(spec_.counts);
    const ElementRange own = blocks[static_cast<size_t>(member_)][0];
    const Locate source = contributions({{0, total_of(spec_)}});
    const Locate sink = [this, own](ElementRange range) {
      return builder_.output({range.begin - own.begin, range.count});
    };
    if (algorithm_ != Algorithm::hierarchical) {
      reduce_scatter_phase(builder_, algorithm_, {everybody(), member_, blocks, piece_}, source, sink);
      return;
    }
    const Grid grid = this->grid();
    const Phase inside{grid.inside(), grid.place, blocks_by_place(grid, blocks), piece_};
    const Locate partial = partials(inside.block(grid.place));
    reduce_scatter_phase(builder_, Algorithm::direct, inside, source, partial);
    const Phase across{grid.across(), grid.host, blocks_across(grid, blocks), piece_};
    reduce_scatter_phase(builder_, across_algorithm(grid, spec_.kind), across, partial, sink);
  }

  void all_gather() {
    const std::vector<Ranges> blocks = blocks_of(spec_.counts);
    const Ranges& block = blocks[static_cast<size_t>(member_)];
    const Locate own = contributions(block, block[0].begin), result = results(total_of(spec_));
    if (algorithm_ == Algorithm::hierarchical) {
      const Grid grid = this->grid();
      all_gather_phase(builder_, across_algorithm(grid, spec_.kind),
                       {grid.across(), grid.host, blocks_across(grid, blocks), piece_}, own, result);
      all_gather_phase(builder_, Algorithm::direct,
                       {grid.inside(), grid.place, blocks_by_place(grid, blocks), piece_}, result, result);
    } else {
      all_gather_phase(builder_, algorithm_, {everybody(), member_, blocks, piece_}, own, result);
    }
    write_results();
  }

  void all_to_all() {
    const int n = group_.members();
    const std::vector<Ranges> sent = blocks_of(spec_.counts), got = blocks_of(spec_.receive_counts);
    const Locate source = contributions({{0, total_of(spec_)}});
    const auto at = [](int member) { return static_cast<size_t>(member); };
    for (int k = 1; k < n; ++k) {
      const int to = (member_ + k) % n;
      builder_.send(to, source(sent[at(to)][0]));
    }
    ATHANOR_ASSERT(spec_.counts[at(member_)] == spec_.receive_counts[at(member_)],
                   "a rank sends itself {} elements and expects {}", spec_.counts[at(member_)],
                   spec_.receive_counts[at(member_)]);
    builder_.copy(source(sent[at(member_)][0]), builder_.output(got[at(member_)][0]));
    for (int k = 1; k < n; ++k) {
      const int of = (member_ + n - k) % n;
      builder_.receive(of, spec_.wire, builder_.output(got[at(of)][0]));
    }
  }

  void broadcast() {
    const int64_t count = spec_.counts[0];
    const ElementRange all{0, count};
    const bool is_root = member_ == spec_.root;
    const Locate source = is_root ? contributions({all}) : Locate{};
    const Locate result = results(count);
    if (algorithm_ == Algorithm::double_tree) {
      broadcast_by_trees(everybody(), spec_.root, is_root ? source : result, result);
    } else if (algorithm_ == Algorithm::hierarchical) {
      broadcast_over_grid(source, result);
    } else if (is_root) {
      for (int k = 1; k < group_.members(); ++k) builder_.send((member_ + k) % group_.members(), source(all));
    } else {
      const PlanRegion target = result(all);
      builder_.receive(spec_.root, target.dtype, target);
    }
    if (is_root) {
      builder_.copy(source(all), builder_.output(all));
    } else {
      write_results();
    }
  }

  void broadcast_by_trees(std::vector<int> members, int root, const Locate& source, const Locate& result) {
    std::erase(members, root);
    if (members.empty()) return;
    const auto found = std::find(members.begin(), members.end(), member_);
    const int position = found == members.end() ? -1 : static_cast<int>(found - members.begin());
    tree_broadcast(builder_, root, members, position, spec_.counts[0], piece_, source, result);
  }

  // The root to the members at its place of the other hosts, each of these to its own host.
  void broadcast_over_grid(const Locate& source, const Locate& result) {
    const Grid grid = this->grid();
    Grid of_root = grid;
    for (size_t host = 0; host < grid.hosts.size(); ++host)
      for (size_t place = 0; place < grid.hosts[host].size(); ++place)
        if (grid.hosts[host][place] == spec_.root) of_root.place = static_cast<int>(place);
    const bool leads = grid.place == of_root.place;
    const Locate& own = member_ == spec_.root ? source : result;
    if (leads) broadcast_by_trees(of_root.across(), spec_.root, own, result);
    const int leader = grid.inside()[static_cast<size_t>(of_root.place)];
    for (const ElementRange& piece : pieces_of({{0, spec_.counts[0]}}, piece_)) {
      if (leads) {
        for (const int member : grid.inside())
          if (member != member_) builder_.send(member, own(piece));
      } else {
        const PlanRegion target = result(piece);
        builder_.receive(leader, target.dtype, target);
      }
    }
  }

  const CollectiveSpec& spec_;
  const GroupShape& group_;
  const int member_;
  const Algorithm algorithm_;
  PlanBuilder builder_;
  const int64_t piece_;
  PlanRegion travelling_;
};

}  // namespace

GroupShape one_host(int members) {
  return {std::vector<int>(static_cast<size_t>(members), 0)};
}

GroupShape one_member_per_host(int members) {
  GroupShape group{std::vector<int>(static_cast<size_t>(members))};
  std::iota(group.hosts.begin(), group.hosts.end(), 0);
  return group;
}

Algorithm choose_algorithm(const CollectiveSpec& spec, const GroupShape& group) {
  const int n = group.members();
  if (n == 1) return Algorithm::direct;
  const std::vector<std::vector<int>> hosts = members_by_host(group);
  const bool grid = is_even_grid(hosts);
  if (has(spec.kind, spec.algorithm) && (spec.algorithm != Algorithm::hierarchical || grid))
    return spec.algorithm;
  const int64_t bytes = total_of(spec) * static_cast<int64_t>(size_of(spec.wire));
  if (spec.kind == CollectiveKind::all_reduce && bytes * (n - 1) <= one_shot_bytes)
    return Algorithm::one_shot;
  if (hosts.size() == 1) return Algorithm::direct;
  if (grid && has(spec.kind, Algorithm::hierarchical)) return Algorithm::hierarchical;
  const Algorithm algorithm = between_hosts(spec.kind, bytes, n, spec.wire != accumulator_of(spec.dtype));
  return has(spec.kind, algorithm) ? algorithm : Algorithm::direct;
}

Plan plan_collective(const CollectiveSpec& spec, const GroupShape& group, int member) {
  return Planner(spec, group, member).plan();
}

std::vector<int64_t> equal_parts(int64_t count, int parts, int64_t align) {
  const int64_t each = ((count + parts - 1) / parts + align - 1) / align * align;
  std::vector<int64_t> sizes;
  for (int part = 0; part < parts; ++part) {
    const int64_t begin = std::min(count, each * part);
    sizes.push_back(std::min(each, count - begin));
  }
  return sizes;
}

}  // namespace athanor
