//! Event loops, listeners and connections: the only client sockets.
