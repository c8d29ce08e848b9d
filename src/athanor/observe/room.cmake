# Only the tests read JSON back.
find_package(nlohmann_json REQUIRED)
