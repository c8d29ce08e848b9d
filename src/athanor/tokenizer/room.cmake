# Included by the reader of tokenizer files only.
find_package(nlohmann_json REQUIRED)
target_link_libraries(athanor_tokenizer PRIVATE nlohmann_json::nlohmann_json)
