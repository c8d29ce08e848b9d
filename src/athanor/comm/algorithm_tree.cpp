#include "athanor/comm/algorithm_tree.h"

#include <algorithm>
#include <array>
#include <bit>

namespace athanor {
namespace {

// The place of one position in the in-order binary tree over 1 ... size: odd numbers are leaves, and a number
// that ends in k zeros has a subtree of 2^k - 1 to each side.
struct Node {
  int parent = -1, left = -1, right = -1;  // positions
};

class Tree {
 public:
  // Position p has number (p + shift) % size + 1.
  Tree(int size, int shift) : size_(size), shift_(shift), nodes_(static_cast<size_t>(size)) {
    root_ = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    for (int number = 1; number <= size; ++number) {
      const int step = (number & -number) / 2;
      if (step >= 1) link(number, number - step, &Node::left);
      for (int right = step; right >= 1; right /= 2) {
        if (number + right > size) continue;
        link(number, number + right, &Node::right);
        break;
      }
    }
  }
  const Node& operator[](int position) const { return nodes_[static_cast<size_t>(position)]; }
  int root() const { return position_of(root_); }
  int depth() const { return static_cast<int>(std::bit_width(static_cast<unsigned>(size_))); }

 private:
  int position_of(int number) const { return (number - 1 - shift_ % size_ + size_) % size_; }
  void link(int parent, int child, int Node::* side) {
    nodes_[static_cast<size_t>(position_of(parent))].*side = position_of(child);
    nodes_[static_cast<size_t>(position_of(child))].parent = position_of(parent);
  }
  int size_, shift_, root_ = 1;
  std::vector<Node> nodes_;
};

struct Half {
  Tree tree;
  Ranges pieces;
};

std::array<Half, 2> halves_of(int size, int64_t count, int64_t piece) {
  const int64_t first = (count + 1) / 2;
  return {Half{Tree(size, 0), pieces_of({{0, first}}, piece)},
          Half{Tree(size, 1), pieces_of({{first, count - first}}, piece)}};
}

void send_down(PlanBuilder& builder, const std::vector<int>& members, const Node& node,
               const PlanRegion& region) {
  for (const int child : {node.left, node.right})
    if (child >= 0) builder.send(members[static_cast<size_t>(child)], region);
}

}  // namespace

void tree_all_reduce(PlanBuilder& builder, const std::vector<int>& members, int position, int64_t count,
                     int64_t piece, const Locate& source, const Locate& result) {
  const std::array<Half, 2> halves = halves_of(static_cast<int>(members.size()), count, piece);
  const auto member = [&](int at) { return members[static_cast<size_t>(at)]; };
  const PlanRegion partials = builder.scratch(builder.accumulator(), count);
  const DType partial = builder.accumulator();

  const auto up = [&](const Tree& tree, const ElementRange& range) {
    const Node& node = tree[position];
    const PlanRegion own = source(range);
    std::vector<PlanOperand> operands;
    // A child without children has nothing but its own contribution to send.
    const auto from_child = [&](int child) {
      const bool leaf = tree[child].left < 0 && tree[child].right < 0;
      operands.push_back(PlanBuilder::from(member(child), leaf ? own.dtype : partial, range.count));
    };
    if (node.left >= 0) from_child(node.left);
    operands.push_back(PlanBuilder::local(own));
    if (node.right >= 0) from_child(node.right);
    if (node.parent < 0) {
      builder.reduce(operands, result(range));
    } else if (operands.size() == 1) {
      builder.send(member(node.parent), own);
    } else {
      const PlanRegion target = PlanBuilder::part(partials, range.begin, range.count);
      builder.reduce(operands, target);
      builder.send(member(node.parent), target);
    }
  };
  const auto down = [&](const Tree& tree, const ElementRange& range) {
    const Node& node = tree[position];
    const PlanRegion target = result(range);
    if (node.parent >= 0) builder.receive(member(node.parent), target.dtype, target);
    send_down(builder, members, node, target);
  };

  // A piece goes down while the pieces after it still go up.
  const auto lag = static_cast<size_t>(halves[0].tree.depth());
  const size_t most = std::max(halves[0].pieces.size(), halves[1].pieces.size());
  for (size_t k = 0; k < most + lag; ++k) {
    for (const Half& half : halves)
      if (k < half.pieces.size()) up(half.tree, half.pieces[k]);
    for (const Half& half : halves)
      if (k >= lag && k - lag < half.pieces.size()) down(half.tree, half.pieces[k - lag]);
  }
}

void tree_broadcast(PlanBuilder& builder, int root, const std::vector<int>& members, int position,
                    int64_t count, int64_t piece, const Locate& source, const Locate& result) {
  const std::array<Half, 2> halves = halves_of(static_cast<int>(members.size()), count, piece);
  const size_t most = std::max(halves[0].pieces.size(), halves[1].pieces.size());
  for (size_t k = 0; k < most; ++k) {
    for (const Half& half : halves) {
      if (k >= half.pieces.size()) continue;
      const ElementRange& range = half.pieces[k];
      if (position < 0) {
        builder.send(members[static_cast<size_t>(half.tree.root())], source(range));
        continue;
      }
      const Node& node = half.tree[position];
      const PlanRegion target = result(range);
      builder.receive(node.parent < 0 ? root : members[static_cast<size_t>(node.parent)], target.dtype,
                      target);
      send_down(builder, members, node, target);
    }
  }
}

}  // namespace athanor
