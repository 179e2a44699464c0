//! Lua 5.1 through a thin layer over its C API, with the libraries scripts expect.
