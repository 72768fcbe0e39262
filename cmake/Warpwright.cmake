# Builds the folders of this project.
#
# warpwright_library(NAME FOLDER folder SOURCES … CUDA_SOURCES … SOURCES_WITHOUT_CUDA … DEPENDS …) makes the
# static library of one folder of src/. If FOLDER is given, it makes a library of a part of that folder. Its
# headers are reachable as "FOLDER/header.hpp", but only for targets that link it: every folder has its own
# include root, which contains only a link to that folder. So an include against the direction of the
# dependency rule (cli → train → infer → model → ops → runtime → core) does not compile.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(WARPWRIGHT_CCACHE ccache)
  if(WARPWRIGHT_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${WARPWRIGHT_CCACHE})
  endif()
endif()

# -Wno-restrict: GCC 12 mistakes the insertion into a string for an overlapping copy (GCC bug 105651).
# -Wno-stringop-overflow, -Wno-array-bounds: GCC 13 mistakes the growth of a vector of strings for writes beyond
# them.
# -Wno-pass-failed: Clang warns if it cannot vectorize a loop with `omp simd`, which the sanitizers prevent.
add_library(warpwright_flags INTERFACE)
target_compile_options(warpwright_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-stringop-overflow -Wno-array-bounds>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-pass-failed>)

# With CUDA, CUDA's runtime is linked statically, so that the program also starts without a driver.
# WARPWRIGHT_CUDA_ARCHS has the syntax of CMAKE_CUDA_ARCHITECTURES. CMake's native is 90 for a Hopper GPU, but wgmma needs 90a.
if(WARPWRIGHT_CUDA)
  set(cuda_archs ${WARPWRIGHT_CUDA_ARCHS})
  if(cuda_archs STREQUAL "native")
    if(NOT CMAKE_CUDA_ARCHITECTURES_NATIVE)
      message(FATAL_ERROR "WARPWRIGHT_CUDA_ARCHS: native, but CUDA finds no GPU on this machine; name the architecture \
of the GPU that will run the program (90a-real for an H100 or H200), or leave the option out")
    endif()
    string(REPLACE "90-real" "90a-real" cuda_archs "${CMAKE_CUDA_ARCHITECTURES_NATIVE}")
  endif()
  message(STATUS "GPU kernels: ${cuda_archs}")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know this option of nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${cuda_archs})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(WARPWRIGHT_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${WARPWRIGHT_CCACHE})
  endif()
  add_library(warpwright_cuda INTERFACE)
  target_link_libraries(warpwright_cuda INTERFACE CUDA::cudart_static)
  target_compile_definitions(warpwright_cuda INTERFACE WARPWRIGHT_CUDA=1)
  target_compile_options(warpwright_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror;-Werror=all-warnings;--expt-relaxed-constexpr;-Xfatbin=-compress-all>")
else()
  message(STATUS "GPU kernels: none")
endif()

# For commands, benches' cases and tests: there is much of this code, and its speed does not matter. Optimization would
# take a third of its compile time.
add_library(warpwright_seldom_run INTERFACE)
target_compile_options(warpwright_seldom_run INTERFACE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)

# Builds of type Release compile up to eight sources at a time (a unity build) in tests, benches and most host code. Kernels,
# and builds of other types, compile each source by itself. GCC warns about types with local names in the included sources; the
# warning is meant for headers.
set(WARPWRIGHT_UNITY OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(WARPWRIGHT_UNITY ON)
endif()
function(warpwright_unity target)
  if(WARPWRIGHT_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# g++ reads fmt and the usual containers precompiled: they take half of a small source's compile time. The libraries share the
# precompiled header of warpwright_runtime, because their flags agree but for warnings; the commands have one with CLI11. With
# ccache there is none, because ccache would not keep what is compiled with it. scripts/check-syntax has none either, so it finds
# missing includes.
function(warpwright_precompiled target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
    return()
  endif()
  if(target STREQUAL "warpwright_runtime")
    target_precompile_headers(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp>)
  elseif(target STREQUAL "warpwright_cli")
    target_precompile_headers(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp>
                              $<$<COMPILE_LANGUAGE:CXX>:<CLI/CLI.hpp$<ANGLE-R>>)
  else()
    target_precompile_headers(${target} REUSE_FROM warpwright_runtime)
  endif()
endfunction()

function(warpwright_library name)
  cmake_parse_arguments(arg "" "FOLDER" "SOURCES;CUDA_SOURCES;SOURCES_WITHOUT_CUDA;DEPENDS" ${ARGN})
  set(folder ${name})
  if(arg_FOLDER)
    set(folder ${arg_FOLDER})
  endif()
  set(root ${PROJECT_BINARY_DIR}/include/${folder})
  file(MAKE_DIRECTORY ${root})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${root}/${folder} SYMBOLIC)
  add_library(warpwright_${name} STATIC ${arg_SOURCES})
  target_include_directories(warpwright_${name} PUBLIC ${root})
  list(TRANSFORM arg_DEPENDS PREPEND warpwright_ REGEX "^(core|roofline|runtime|comm|text|data|norms|ops|model|infer|train)$")
  target_link_libraries(warpwright_${name} PUBLIC ${arg_DEPENDS} PRIVATE warpwright_flags)
  if(WARPWRIGHT_CUDA)
    target_sources(warpwright_${name} PRIVATE ${arg_CUDA_SOURCES})
    target_link_libraries(warpwright_${name} PUBLIC warpwright_cuda)
  else()
    target_sources(warpwright_${name} PRIVATE ${arg_SOURCES_WITHOUT_CUDA})
  endif()
  if(NOT name MATCHES "^(core|roofline)$")  # these have other flags: no OpenMP
    warpwright_precompiled(warpwright_${name})
  endif()
endfunction()

# Flags of sources that are compiled for one instruction set and chosen at run time. They are always
# optimized, so that no inline helper remains as a function. They export no weak symbol, which
# scripts/check-isa-symbols checks. GCC 12 and 13 report the deliberately undefined operands in their own
# AVX-512 headers (GCC bug 105593). Loops start at a cache line: on a Zen 3, a GEMM loop at another place took
# 10% longer.
set(isa_sse2 -O3)
set(isa_avx2 -O3 -falign-functions=64 -falign-loops=64 -mavx2 -mfma -mbmi2 -mf16c
    $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized>)
set(isa_avx512 ${isa_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(isa_avx512_bf16 ${isa_avx512} -mavx512bf16)
set(isa_amx_bf16 ${isa_avx512_bf16} -mamx-tile -mamx-bf16)
set(isa_avx_vnni ${isa_avx2} -mavxvnni)
set(isa_avx512_vnni ${isa_avx512} -mavx512vnni)
set(isa_amx_int8 ${isa_avx512_bf16} -mamx-tile -mamx-int8)

# warpwright_cpu_kernels(LIBRARY ISAS isa… FILES file… DEPENDS …) adds CPU kernels to a library. NAME.inl is
# compiled once for each of ISAS and NAME.ISA.cpp for the instruction set in its name, both with
# WARPWRIGHT_ISA defined. NAME.portable.cpp is compiled as any other source.
function(warpwright_cpu_kernels library)
  cmake_parse_arguments(arg "" "" "ISAS;FILES;DEPENDS" ${ARGN})
  set(used)
  foreach(file IN LISTS arg_FILES)
    if(file MATCHES "\\.inl$")
      set(isas ${arg_ISAS})
      set_source_files_properties(${file} PROPERTIES LANGUAGE CXX)
    elseif(file MATCHES "\\.portable\\.cpp$")
      target_sources(${library} PRIVATE ${file})
      continue()
    elseif(file MATCHES "\\.([^./]+)\\.cpp$")
      set(isas ${CMAKE_MATCH_1})
    else()
      message(FATAL_ERROR "${file} is not a CPU kernel's name; call it NAME.inl, NAME.ISA.cpp or NAME.portable.cpp")
    endif()
    foreach(isa IN LISTS isas)
      if(NOT isa_${isa})
        message(FATAL_ERROR "${file}: there is no instruction set ${isa}; add isa_${isa} to cmake/Warpwright.cmake")
      endif()
      list(APPEND files_${isa} ${file})
      list(APPEND used ${isa})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES used)
  foreach(isa IN LISTS used)
    set(objects ${library}_${isa})
    add_library(${objects} OBJECT ${files_${isa}})
    target_compile_options(${objects} PRIVATE ${isa_${isa}})
    target_compile_definitions(${objects} PRIVATE WARPWRIGHT_ISA=${isa})
    target_include_directories(${objects} PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
    target_link_libraries(${objects} PRIVATE ${arg_DEPENDS} warpwright_flags)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:${objects}>)
    set_property(GLOBAL APPEND PROPERTY warpwright_isa_libraries ${objects})
  endforeach()
endfunction()

# warpwright_test(NAME SOURCES … DEPENDS …) builds one GoogleTest program and registers each of its tests with
# ctest under the label NAME.
function(warpwright_test name)
  if(NOT WARPWRIGHT_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  warpwright_unity(${name})
  list(TRANSFORM arg_DEPENDS PREPEND warpwright_ REGEX "^(core|roofline|runtime|comm|text|data|ops|model|infer|train)$")
  target_link_libraries(${name} PRIVATE ${arg_DEPENDS} warpwright_flags warpwright_seldom_run GTest::gtest_main)
  # Parallel tests share the processors, so a waiting thread must not spin.
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 900 LABELS ${name} ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
