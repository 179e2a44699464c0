//! RESP2 and RESP3 without I/O: bytes to arguments, replies to bytes.
