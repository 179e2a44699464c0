//! The rows of `crate::transaction`.

use super::{PLAIN, Row};
use crate::transaction as t;

pub(super) const ACTIONS: &[Row] = &[
    Row("multi", t::multi, PLAIN),
    Row("exec", t::exec, PLAIN),
    Row("discard", t::discard, PLAIN),
    Row("watch", t::watch, PLAIN),
    Row("unwatch", t::unwatch, PLAIN),
];
