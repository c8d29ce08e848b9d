set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/reduction.cpp PROPERTIES COMPILE_OPTIONS -O3)  # vectorised
# Every x86-64 processor with AVX2 has prefetchw; older ones of Intel take it for no operation.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/plain_sum.cpp PROPERTIES COMPILE_OPTIONS -mprfchw)
find_package(hwy REQUIRED)
find_package(OpenSSL REQUIRED)
target_link_libraries(athanor_comm PRIVATE OpenSSL::Crypto hwy::hwy)
