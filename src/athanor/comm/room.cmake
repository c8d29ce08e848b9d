set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/reduction.cpp PROPERTIES COMPILE_OPTIONS -O3)  # vectorised
find_package(OpenSSL REQUIRED)
target_link_libraries(athanor_comm PRIVATE OpenSSL::Crypto)
