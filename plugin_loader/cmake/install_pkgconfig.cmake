# Write NAME.pc for the prefix of this installation. Runs when the project is installed.
get_filename_component(prefix "${CMAKE_INSTALL_PREFIX}" ABSOLUTE) # --prefix may be relative
foreach(dir IN ITEMS libdir includedir)
    # A distribution may have one of them outside of the prefix.
    if(NOT IS_ABSOLUTE "${${dir}}")
        set(full_${dir} "${prefix}/${${dir}}")
        set(pc_${dir} "\${prefix}/${${dir}}")
    else()
        set(full_${dir} "${${dir}}")
        set(pc_${dir} "${${dir}}")
    endif()
endforeach()
# `pkg-config --define-prefix` takes the folder above lib/pkgconfig for the prefix. That is wrong
# below lib/x86_64-linux-gnu/pkgconfig, so there the folders are given from the file's own.
if(libdir MATCHES "/" AND NOT IS_ABSOLUTE "${libdir}" AND NOT IS_ABSOLUTE "${includedir}")
    file(RELATIVE_PATH up "${full_libdir}/pkgconfig" "${full_includedir}")
    set(pc_includedir "\${pcfiledir}/${up}")
    set(pc_libdir "\${pcfiledir}/..")
endif()
# pkg-config reads values as a shell does.
foreach(value IN ITEMS prefix pc_libdir pc_includedir)
    string(REPLACE " " "\\ " ${value} "${${value}}")
endforeach()
configure_file("${source}/cmake/${name}.pc.in" "${binary}/${name}.pc" @ONLY)
file(INSTALL "${binary}/${name}.pc" DESTINATION "${full_libdir}/pkgconfig" TYPE FILE)
