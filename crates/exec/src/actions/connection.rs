//! PING, ECHO, AUTH, HELLO, SELECT, QUIT, RESET, CLIENT.

use super::Row;

pub(super) const ACTIONS: &[Row] = &[];
