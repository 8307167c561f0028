# Defines the target unisono::unisono: the shared library and the folder of its header.
get_filename_component(_unisono_libdir "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET unisono::unisono)
  add_library(unisono::unisono SHARED IMPORTED)
  set_target_properties(unisono::unisono PROPERTIES
    IMPORTED_LOCATION "${_unisono_libdir}/libunisono.so.@version@"
    IMPORTED_SONAME "libunisono.so.@interface@"
    INTERFACE_INCLUDE_DIRECTORIES "@includedir@")
endif()
unset(_unisono_libdir)
