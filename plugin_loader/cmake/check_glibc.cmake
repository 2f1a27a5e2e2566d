# Fail if LIBRARY needs a symbol of a glibc that is newer than GLIBC.
execute_process(COMMAND ${OBJDUMP} -T ${LIBRARY}
                OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "GLIBC_[0-9.]+\\)? +[A-Za-z0-9_]+" needed "${symbols}")
set(newer "")
foreach(symbol IN LISTS needed)
    string(REGEX MATCH "^GLIBC_([0-9.]+)\\)? +(.*)" ignored "${symbol}")
    if(CMAKE_MATCH_1 VERSION_GREATER GLIBC)
        list(APPEND newer "${CMAKE_MATCH_2} (${CMAKE_MATCH_1})")
    endif()
endforeach()
if(newer)
    # Otherwise the linker's output would stay, and the next build would find nothing to do.
    file(REMOVE ${LIBRARY})
    list(JOIN newer ", " newer)
    message(FATAL_ERROR "${LIBRARY} needs a newer glibc than ${GLIBC}: ${newer}\n"
        "hint: compile on a system with that glibc, or with `zig cc -target "
        "x86_64-linux-gnu.${GLIBC}`, or leave ARCHSPLIT_GLIBC empty")
endif()
