find_package(hwy REQUIRED)
target_link_libraries(athanor_kernels PRIVATE hwy::hwy)
