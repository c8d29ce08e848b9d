find_package(hwy REQUIRED)
target_link_libraries(athanor_kernels PRIVATE hwy::hwy)
# Highway 1.0.3 has no bf16 target: this file is compiled for it as a whole, and called only where it runs.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/cpu/attention_bf16.cpp PROPERTIES COMPILE_OPTIONS
                            "-mavx2;-mfma;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512bf16")
