# find_package(convtbw) gives the target convtbw::convtbw: header, library, torch and their run paths.
include(CMakeFindDependencyMacro)
# The C++ interface of torch changes between releases (torch_ops/_library.py).
find_dependency(Torch 2.13.0 EXACT)

if(NOT TARGET convtbw::convtbw)
  get_filename_component(package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)  # torch_ops
  set(library "${package}/libconvtbw.so")
  if(NOT EXISTS "${library}")
    set(convtbw_FOUND FALSE)
    set(convtbw_NOT_FOUND_MESSAGE "${library} is missing: build it with `make build` or `pip install .`")
    return()
  endif()
  add_library(convtbw::convtbw INTERFACE IMPORTED)
  target_include_directories(convtbw::convtbw INTERFACE "${package}/include")
  target_compile_features(convtbw::convtbw INTERFACE cxx_std_20)
  # The operators are registered when the library is loaded, also in a program that calls none of
  # the header's functions: --as-needed, which torch's own target leaves on, would drop it.
  target_link_libraries(convtbw::convtbw INTERFACE
    ${TORCH_LIBRARIES} "-Wl,--push-state,--no-as-needed,\"${library}\",--pop-state")
  # Options, for CMake drops the run paths that it adds itself when it installs a program.
  target_link_options(convtbw::convtbw INTERFACE
    "LINKER:-rpath,${package},-rpath,${TORCH_INSTALL_PREFIX}/lib")
endif()
