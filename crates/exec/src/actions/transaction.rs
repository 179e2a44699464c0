//! The rows of `crate::multi` and `crate::transaction`.

use crate::act::{PLAIN, Row};
use crate::multi::{discard, multi, unwatch, watch};
use crate::transaction::exec;

pub(super) const ACTIONS: &[Row] = &[
    Row("multi", multi, PLAIN),
    Row("exec", exec, PLAIN),
    Row("discard", discard, PLAIN),
    Row("watch", watch, PLAIN),
    Row("unwatch", unwatch, PLAIN),
];
