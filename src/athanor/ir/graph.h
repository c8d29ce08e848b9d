// A graph of operations on typed values: what models build, passes rewrite and programs are made of.
//
// Called by model, compile, program, execute. Values and operations are named by index; operations stand in
// an order in which each value is written before it is read. Thread safety: a value type.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "athanor/ir/operation.h"

namespace athanor {

using ValueId = int32_t;
inline constexpr ValueId no_value = -1;

// What a value is. Decides its dtype (precision policy), its lifetime and its placement.
enum class Role : uint8_t {
  activation,          // lives within one template
  residual,            // the residual stream: crosses segment boundaries
  statistic,           // norm and softmax statistics
  parameter,           // working copy of a weight, a slice of its bucket
  parameter_gradient,  // a slice of the gradient bucket
  residual_gradient,
  activation_gradient,
  batch,            // token ids, labels, positions, documents, indices, sample ids
  scalar,           // device scalars: valid tokens, loss, norm, clip factor, skip
  master,           // a whole bucket: fp32 (or fp64) weights
  bucket_gradient,  // a whole bucket
  optimizer_state,  // a whole bucket
  working,          // a whole bucket of working copies
  cache,            // keys or values of the tokens that a sequence has had
};
inline constexpr int role_count = 14;
const char* name_of(Role role);

struct Value {
  std::string name;  // logical, unique in its graph; "{layer}" is filled in by the call
  DType dtype = DType::fp32;
  Shape shape;
  Placements placements;
  Role role = Role::activation;
  friend bool operator==(const Value&, const Value&) = default;
};

struct Operation {
  OperationKind kind{};
  Part part = Part::forward;
  Attributes attributes;
  std::vector<ValueId> inputs, outputs;  // in the row's order; no_value for an absent optional operand
  int32_t region = -1;                   // index in Graph::regions when it runs once per chunk
  friend bool operator==(const Operation&, const Operation&) = default;
};

// A loop over chunks of the token dim: its operations stand together and run in turn for each chunk.
// Values inside have the shape of a full chunk, [1, chunk_rows, ...]; the last chunk may be shorter.
struct Region {
  std::string name;
  int64_t rows = 0, chunk_rows = 0;
  int64_t iterations() const { return chunk_rows == 0 ? 0 : (rows + chunk_rows - 1) / chunk_rows; }
  friend bool operator==(const Region&, const Region&) = default;
};

// What a parameter is, declared by the model: decides initialisation, weight decay and learning rate.
enum class ParameterRole : uint8_t { matrix, embedding, norm, bias };
inline constexpr int parameter_role_count = 4;
const char* name_of(ParameterRole role);

// One logical parameter within a bucket (a 1-D tensor).
struct BucketMember {
  std::string name;  // "block.{layer}.mlp.up.weight"
  Shape shape;
  ParameterRole role = ParameterRole::matrix;
  int64_t offset = 0;  // elements from the bucket's start
  double weight_decay = 0, learning_rate_factor = 1;
  double initial_mean = 0, initial_deviation = 0;  // of the normal distribution it starts from
  Placements placements = {};  // of which `shape` is a rank's storage; nothing is cut in a model's own tables
  int64_t length() const { return shape.elements(); }
  friend bool operator==(const BucketMember&, const BucketMember&) = default;
};

struct BucketTable {
  std::string name;  // "embedding", "block", "head"
  std::vector<BucketMember> members;
  int64_t length() const { return members.empty() ? 0 : members.back().offset + members.back().length(); }
  friend bool operator==(const BucketTable&, const BucketTable&) = default;
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Operation> operations;
  std::vector<Region> regions;
  std::vector<BucketTable> tables;
  std::vector<ValueId> inputs, outputs;  // what is written before the first and read after the last operation

  const Value& value(ValueId id) const { return values.at(static_cast<size_t>(id)); }
  Value& value(ValueId id) { return values.at(static_cast<size_t>(id)); }
  ValueId add_value(Value value);
  // Appends an operation, with its outputs as given. Optional operands at the end may be left out.
  Operation& add_operation(OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                           Attributes attributes = {}, Part part = Part::forward);
  ValueId find(std::string_view value_name) const;  // no_value if absent
  friend bool operator==(const Graph&, const Graph&) = default;
};

// Operand types of an operation, for the rules of its row.
std::vector<OperandType> types_of(const Graph& graph, std::span<const ValueId> values);
// Of an operation in a region: of all iterations together, the shorter last one counted as it is.
Cost cost_of(const Graph& graph, const Operation& operation);

// Throws an assertion-like Error (kind stop_job) naming graph, operation and operand when: an id is out of
// range, a value is written twice or read before it is written, operand counts or shapes do not fit the row,
// a dtype is wrong for its operand, operations of a region do not stand together, a name is used twice.
void verify(const Graph& graph);

// The stable text form, and its inverse: parse_graph(to_text(g)) == g for every graph whose ids are in range.
// Values are declared where they are first written: "%3 y: fp32 [2,8] activation = gelu(%2) part=forward".
// Attributes print when they differ from their default, placements when not replicated. What does not parse
// is a user error that names the line; a parsed graph has its ids in range and is not verified.
std::string to_text(const Graph& graph);
// With notes of the caller behind declarations of values and behind operations (by index); does not parse.
struct GraphNotes {
  std::function<std::string(ValueId)> of_value;
  std::function<std::string(size_t)> of_operation;
};
std::string to_text(const Graph& graph, const GraphNotes& notes);
Graph parse_graph(std::string_view text);

}  // namespace athanor
