#include <gtest/gtest.h>

#include <set>

#include "athanor/ir/operation.h"

namespace athanor {
namespace {

TEST(OperationTable, RowsAreWellFormed) {
  std::set<std::string_view> names;
  for (int i = 0; i < operation_kind_count; ++i) {
    const auto kind = static_cast<OperationKind>(i);
    const OperationRow& row = row_of(kind);
    EXPECT_EQ(row.kind, kind);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(parse_operation_kind(row.name), kind);
    EXPECT_FALSE(row.outputs.empty()) << row.name;
    EXPECT_NE(row.cost, nullptr);
    EXPECT_NE(row.check, nullptr);
    ASSERT_EQ(row.in_place.size(), row.outputs.size()) << row.name;
    for (const int8_t input : row.in_place) EXPECT_LT(input, static_cast<int>(row.inputs.size())) << row.name;
    // Required operands come first, so that optional ones may be left out at the end.
    for (const auto* operands : {&row.inputs, &row.outputs}) {
      std::set<std::string_view> operand_names;
      bool optional = false;
      for (const Operand& operand : *operands) {
        EXPECT_TRUE(operand_names.insert(operand.name).second) << row.name << " " << operand.name;
        EXPECT_TRUE(operand.optional || !optional) << row.name << " " << operand.name;
        optional = operand.optional;
      }
    }
    EXPECT_EQ(row.is_random, row.fields != 0 && (row.fields & mask_of(Field::name)) != 0) << row.name;
  }
  EXPECT_EQ(parse_operation_kind("convolution"), std::nullopt);
}

TEST(OperationTable, AttributesPrintOnlyWhatDiffersFromTheDefault) {
  Attributes attributes;
  const FieldMask all = ~FieldMask{0};
  EXPECT_EQ(to_text(attributes, all), "");
  attributes.epsilon = 1e-6;
  attributes.window = 256;
  attributes.activation = Activation::gelu;
  attributes.inverse = true;
  attributes.beta2 = 0.1 + 0.2;
  attributes.name = "block.{layer}.attention";
  EXPECT_EQ(to_text(attributes, all),
            "epsilon=1e-06 inverse=true window=256 activation=gelu beta2=0.30000000000000004 "
            "name=block.{layer}.attention");
  EXPECT_EQ(to_text(attributes, mask_of(Field::window) | mask_of(Field::scale)), "window=256");
}

TEST(OperationTable, AttributesParseBack) {
  Attributes attributes;
  EXPECT_TRUE(parse_attribute("scale", "0.30000000000000004", attributes));
  EXPECT_EQ(attributes.scale, 0.1 + 0.2);
  EXPECT_TRUE(parse_attribute("inverse", "true", attributes));
  EXPECT_TRUE(attributes.inverse);
  EXPECT_TRUE(parse_attribute("name", "\"a \\\"b\\\" \\n\"", attributes));
  EXPECT_EQ(attributes.name, "a \"b\" \n");
  EXPECT_TRUE(parse_attribute("activation", "gelu", attributes));
  EXPECT_EQ(attributes.activation, Activation::gelu);

  for (const auto& [field, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"scales", "1"},
                                                                  {"", "1"},
                                                                  {"scale", ""},
                                                                  {"scale", "1x"},
                                                                  {"scale", "x"},
                                                                  {"window", "1.5"},
                                                                  {"window", "99999999999999999999"},
                                                                  {"inverse", "1"},
                                                                  {"activation", "relu"},
                                                                  {"name", "\"a"},
                                                                  {"name", "a b"}}) {
    EXPECT_FALSE(parse_attribute(field, value, attributes)) << field << "=" << value;
  }
}

}  // namespace
}  // namespace athanor
