#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "athanor/base/error.h"
#include "athanor/ir/graph.h"
#include "athanor/ir/text_scanner.h"

namespace athanor {

namespace {

constexpr std::array<std::string_view, 4> part_names = {"forward", "input_gradient", "weight_gradient",
                                                        "update"};

// Fields of a bucket member that print when they differ from their default.
struct MemberField {
  std::string_view name;
  double BucketMember::* member;
};
constexpr MemberField member_fields[] = {
    {"weight_decay", &BucketMember::weight_decay},
    {"learning_rate_factor", &BucketMember::learning_rate_factor},
    {"initial_mean", &BucketMember::initial_mean},
    {"initial_deviation", &BucketMember::initial_deviation},
};

// A new field of these types must be printed and parsed here: these lines then stop compiling.
[[maybe_unused]] void count_fields(const Graph& graph, const Value& value, const Operation& operation,
                                   const Region& region, const BucketTable& table,
                                   const BucketMember& member) {
  [[maybe_unused]] const auto& [g1, g2, g3, g4, g5, g6, g7] = graph;
  [[maybe_unused]] const auto& [v1, v2, v3, v4, v5] = value;
  [[maybe_unused]] const auto& [o1, o2, o3, o4, o5, o6] = operation;
  [[maybe_unused]] const auto& [r1, r2, r3] = region;
  [[maybe_unused]] const auto& [t1, t2] = table;
  [[maybe_unused]] const auto& [m1, m2, m3, m4, m5, m6, m7, m8, m9] = member;
}

// ---- printing

std::string declaration(const Graph& graph, const GraphNotes& notes, ValueId id) {
  const Value& value = graph.value(id);
  const std::string placements = to_text(value.placements);
  const std::string note = notes.of_value ? notes.of_value(id) : "";
  return fmt::format("%{} {}: {} {}{}{} {}{}{}", id, quoted_if_needed(value.name), name_of(value.dtype),
                     to_text(value.shape), placements.empty() ? "" : " ", placements, name_of(value.role),
                     note.empty() ? "" : " ", note);
}

std::string reference(ValueId id) {
  return id == no_value ? "-" : fmt::format("%{}", id);
}

class Printer {
 public:
  Printer(const Graph& graph, const GraphNotes& notes)
      : graph_(graph), notes_(notes), declared_(graph.values.size(), false) {}

  std::string print() {
    line(0, fmt::format("graph {} {{", quoted_if_needed(graph_.name)));
    for (size_t i = 0; i < graph_.tables.size(); ++i) print_table(i);
    for (size_t i = 0; i < graph_.regions.size(); ++i) {
      const Region& region = graph_.regions[i];
      line(1, fmt::format("region {} {}: rows={} chunk_rows={}", i, quoted_if_needed(region.name),
                          region.rows, region.chunk_rows));
    }
    for (const ValueId id : graph_.inputs) line(1, "input " + declare_once(id));
    print_undeclared();
    print_operations();
    for (const ValueId id : graph_.outputs) line(1, "output " + reference(id));
    line(0, "}");
    return std::move(text_);
  }

 private:
  void line(int depth, std::string_view content) {
    text_.append(static_cast<size_t>(2 * depth), ' ').append(content).append("\n");
  }

  std::string declare_once(ValueId id) {
    if (id == no_value || declared_[static_cast<size_t>(id)]) return reference(id);
    declared_[static_cast<size_t>(id)] = true;
    return declaration(graph_, notes_, id);
  }

  void print_table(size_t index) {
    const BucketTable& table = graph_.tables[index];
    line(1, fmt::format("table {} {} {{", index, quoted_if_needed(table.name)));
    for (const BucketMember& member : table.members) {
      const std::string placements = to_text(member.placements);
      std::string text =
          fmt::format("{}: {} {}{}{} at {}", quoted_if_needed(member.name), name_of(member.role),
                      to_text(member.shape), placements.empty() ? "" : " ", placements, member.offset);
      for (const MemberField& field : member_fields) {
        if (member.*field.member == BucketMember{}.*field.member) continue;
        text += fmt::format(" {}={}", field.name, member.*field.member);
      }
      line(2, text);
    }
    line(1, "}");
  }

  // Values that no operation writes, or only after one has read them: a verified graph has none that are
  // used.
  void print_undeclared() {
    std::vector<bool> known = declared_;
    for (const Operation& operation : graph_.operations) {
      for (const ValueId id : operation.inputs) {
        if (id != no_value && !known[static_cast<size_t>(id)]) {
          line(1, "value " + declare_once(id));
          known[static_cast<size_t>(id)] = true;
        }
      }
      for (const ValueId id : operation.outputs) {
        if (id != no_value) known[static_cast<size_t>(id)] = true;
      }
    }
    for (size_t i = 0; i < known.size(); ++i) {
      if (!known[i]) line(1, "value " + declare_once(static_cast<ValueId>(i)));
    }
  }

  void print_operations() {
    int32_t region = -1;
    const auto enter = [&](int32_t next) {
      if (next == region) return;
      if (region >= 0) line(1, "}");
      region = next;
      if (region >= 0) line(1, fmt::format("loop {} {{", region));
    };
    for (size_t i = 0; i < graph_.operations.size(); ++i) {
      enter(graph_.operations[i].region);
      print_operation(i, region >= 0 ? 2 : 1);
    }
    enter(-1);
  }

  void print_operation(size_t index, int depth) {
    const Operation& operation = graph_.operations[index];
    const OperationRow& row = row_of(operation.kind);
    std::string text;
    for (size_t i = 0; i < operation.outputs.size(); ++i) {
      text += (i == 0 ? "" : ", ") + declare_once(operation.outputs[i]);
    }
    text += fmt::format("{}= {}(", text.empty() ? "" : " ", row.name);
    for (size_t i = 0; i < operation.inputs.size(); ++i)
      text += (i == 0 ? "" : ", ") + reference(operation.inputs[i]);
    const std::string attributes = to_text(operation.attributes, row.fields);
    text += fmt::format("){}{} part={}", attributes.empty() ? "" : " ", attributes,
                        part_names.at(static_cast<size_t>(operation.part)));
    const std::string note = notes_.of_operation ? notes_.of_operation(index) : "";
    line(depth, note.empty() ? text : text + " " + note);
  }

  const Graph& graph_;
  const GraphNotes& notes_;
  std::vector<bool> declared_;
  std::string text_;
};

// ---- parsing

template <class Enum>
std::optional<Enum> parse_name(std::string_view name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : scanner_(text, "graph") {}

  Graph parse() {
    next_line();
    scanner_.expect("graph");
    graph_.name = scanner_.name();
    open();
    while (next_line(), !scanner_.accept("}")) parse_line();
    scanner_.end_line();
    if (scanner_.next_line()) scanner_.fail("text after the end of the graph");
    for (size_t i = 0; i < declared_.size(); ++i) {
      if (!declared_[i]) scanner_.fail(fmt::format("value %{} is not declared", i));
    }
    return std::move(graph_);
  }

 private:
  void next_line() {
    if (!scanner_.next_line()) scanner_.fail("the text ends within the graph");
  }

  void open() {
    scanner_.expect("{");
    scanner_.end_line();
  }

  // Takes the next index of a list that is numbered from 0.
  void expect_index(size_t index) {
    if (scanner_.integer() != static_cast<int64_t>(index))
      scanner_.fail(fmt::format("number {} is expected", index));
  }

  void parse_line() {
    if (scanner_.accept("table ")) {
      parse_table();
    } else if (scanner_.accept("region ")) {
      parse_region();
    } else if (scanner_.accept("input ")) {
      graph_.inputs.push_back(parse_value(true));
      scanner_.end_line();
    } else if (scanner_.accept("value ")) {
      parse_value(true);
      scanner_.end_line();
    } else if (scanner_.accept("output ")) {
      graph_.outputs.push_back(parse_value(false));
      scanner_.end_line();
    } else if (scanner_.accept("loop ")) {
      parse_loop();
    } else {
      parse_operation(-1);
    }
  }

  void parse_table() {
    expect_index(graph_.tables.size());
    BucketTable table{.name = scanner_.name(), .members = {}};
    open();
    while (next_line(), !scanner_.accept("}")) table.members.push_back(parse_member());
    scanner_.end_line();
    graph_.tables.push_back(std::move(table));
  }

  BucketMember parse_member() {
    BucketMember member{.name = scanner_.name(), .shape = {}};
    scanner_.expect(":");
    const std::string_view role_name = scanner_.word();
    const auto role = parse_name<ParameterRole>(role_name, parameter_role_count);
    if (!role) scanner_.fail(fmt::format("'{}' is not a parameter role", role_name));
    member.role = *role;
    member.shape = parse_shape_word();
    member.placements = parse_placements_word();
    scanner_.expect("at");
    member.offset = scanner_.integer();
    if (member.offset < 0 || member.offset > int64_t{1} << 60) scanner_.fail("the offset is out of range");
    while (!scanner_.at_end()) {
      const std::string_view field = scanner_.word();
      scanner_.expect("=");
      const auto* const known = std::find_if(std::begin(member_fields), std::end(member_fields),
                                             [&](const MemberField& row) { return row.name == field; });
      if (known == std::end(member_fields)) {
        scanner_.fail(fmt::format("'{}' is not a field of a bucket member", field));
      }
      member.*known->member = scanner_.number();
    }
    return member;
  }

  void parse_region() {
    expect_index(graph_.regions.size());
    Region region{.name = scanner_.name()};
    scanner_.expect(":");
    scanner_.expect("rows=");
    region.rows = scanner_.integer();
    scanner_.expect("chunk_rows=");
    region.chunk_rows = scanner_.integer();
    scanner_.end_line();
    graph_.regions.push_back(std::move(region));
  }

  void parse_loop() {
    const int64_t region = scanner_.integer();
    if (region < 0 || region >= static_cast<int64_t>(graph_.regions.size())) {
      scanner_.fail(fmt::format("there is no region {}", region));
    }
    open();
    while (next_line(), !scanner_.accept("}")) parse_operation(static_cast<int32_t>(region));
    scanner_.end_line();
  }

  Shape parse_shape_word() {
    const std::string_view word = scanner_.word();
    const auto shape = parse_shape(word);
    if (!shape) scanner_.fail(fmt::format("'{}' is not a shape", word));
    return *shape;
  }

  // "{tensor:shard(1)}", or nothing: replicated.
  Placements parse_placements_word() {
    if (!scanner_.next_is("{")) return {};
    const std::string_view text = scanner_.through("}");
    const auto placements = parse_placements(text);
    if (!placements) scanner_.fail(fmt::format("'{}' are not placements", text));
    return *placements;
  }

  // "-", "%3", or with may_declare "%3 name: dtype shape placements role".
  ValueId parse_value(bool may_declare) {
    if (scanner_.accept("-")) return no_value;
    scanner_.expect("%");
    const int64_t id = scanner_.integer();
    if (id < 0 || id > maximum_id) scanner_.fail(fmt::format("value %{} is out of range", id));
    const auto index = static_cast<size_t>(id);
    const bool known = index < declared_.size() && declared_[index];
    if (known) return static_cast<ValueId>(id);
    if (!may_declare) scanner_.fail(fmt::format("value %{} is not declared before", id));

    Value value{.name = scanner_.name(), .shape = {}, .placements = {}};
    scanner_.expect(":");
    const std::string_view dtype_name = scanner_.word();
    const auto dtype = parse_dtype(dtype_name);
    if (!dtype) scanner_.fail(fmt::format("'{}' is not a dtype", dtype_name));
    value.dtype = *dtype;
    value.shape = parse_shape_word();
    value.placements = parse_placements_word();
    const std::string_view role_name = scanner_.word();
    const auto role = parse_name<Role>(role_name, role_count);
    if (!role) scanner_.fail(fmt::format("'{}' is not a role", role_name));
    value.role = *role;

    if (index >= declared_.size()) {
      declared_.resize(index + 1, false);
      graph_.values.resize(index + 1);
    }
    declared_[index] = true;
    graph_.values[index] = std::move(value);
    return static_cast<ValueId>(id);
  }

  void parse_operation(int32_t region) {
    Operation operation{.attributes = {}, .inputs = {}, .outputs = {}, .region = region};
    if (!scanner_.next_is("=")) {
      do operation.outputs.push_back(parse_value(true));
      while (scanner_.accept(","));
    }
    scanner_.expect("=");
    const std::string_view kind_name = scanner_.word();
    const auto kind = parse_operation_kind(kind_name);
    if (!kind) scanner_.fail(fmt::format("'{}' is not an operation", kind_name));
    operation.kind = *kind;
    scanner_.expect("(");
    if (!scanner_.accept(")")) {
      do operation.inputs.push_back(parse_value(false));
      while (scanner_.accept(","));
      scanner_.expect(")");
    }
    while (!scanner_.at_end()) parse_field(operation);
    const std::string foreign = to_text(operation.attributes, ~row_of(*kind).fields);
    if (!foreign.empty()) scanner_.fail(fmt::format("{} has no attribute {}", kind_name, foreign));
    graph_.operations.push_back(std::move(operation));
  }

  void parse_field(Operation& operation) {
    const std::string_view field = scanner_.word();
    scanner_.expect("=");
    const std::string_view text = scanner_.word();
    if (field == "part") {
      for (size_t i = 0; i < part_names.size(); ++i) {
        if (part_names[i] != text) continue;
        operation.part = static_cast<Part>(i);
        return;
      }
      scanner_.fail(fmt::format("'{}' is not a part", text));
    }
    if (!parse_attribute(field, text, operation.attributes)) {
      scanner_.fail(fmt::format("'{}={}' is not an attribute", field, text));
    }
  }

  // Keeps a misprinted id from taking all memory.
  static constexpr int64_t maximum_id = 1'000'000;

  TextScanner scanner_;
  Graph graph_;
  std::vector<bool> declared_;
};

}  // namespace

std::string to_text(const Graph& graph) {
  return to_text(graph, {});
}

std::string to_text(const Graph& graph, const GraphNotes& notes) {
  return Printer(graph, notes).print();
}

Graph parse_graph(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace athanor
