//! Hashes: fields and their values, fields as numbers, whole hashes, fields that expire.
//!
//! - A field is expired from its millisecond on. Readers skip it; a hash with only expired fields looks
//!   empty.
//! - A write first removes the expired fields that it names, and some more (`purge`). The sweep removes the
//!   rest. After `purge` a command may use the fields it names as they are.
//! - Code for expired fields costs hashes without expiry nothing: [`Hash::next_expiry`] is one flag there.

pub(crate) mod expiry;
pub(crate) mod fields;
pub(crate) mod number;
pub(crate) mod random;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

use crate::options::own_words;
use crate::string::STREAM_BYTES;
use crate::{Budget, Cx, Effect, Error, STREAM_FROM};
use keyspace::View;
use resp::Args;
use std::ops::ControlFlow::{Break, Continue};
use value::Hash;

/// Expired fields that a write removes besides those it names.
const PURGE: usize = 64;

/// About four steps per argument.
fn per_argument(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 4
}

/// Whether any field has expired. O(1); O(fields) for small hashes with expiring fields.
#[inline]
fn is_due(hash: &Hash, now: u64) -> bool {
    hash.next_expiry().is_some_and(|at| at <= now)
}

/// Whether a hash is too large to be answered in one go. O(1); O(fields) for small hashes with long values.
#[inline]
pub(crate) fn is_long(hash: &Hash) -> bool {
    hash.len() > STREAM_FROM || hash.mem_bytes() > STREAM_BYTES
}

/// Steps to remove an expired field from a copy, which copies nodes, and steps to count a field.
const DROP_STEPS: usize = 16;
const COUNT_STEPS: usize = 2;

/// The hash without its expired fields. A clone in O(1) if none has expired, else O(expired · log n). Errors:
/// WRONGTYPE, a refused charge.
pub(crate) fn live(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<Option<Hash>, Error> {
    let now = cx.view.due_ms();
    let Some(hash) = cx.view.hash(key)? else { return Ok(None) };
    let mut hash = hash.clone();
    while is_due(&hash, now) {
        cx.charge(PURGE.min(hash.len()) * DROP_STEPS)?;
        hash.remove_expired(now, PURGE, &mut |_| {});
    }
    Ok(Some(hash))
}

/// Number of fields that have not expired. O(1) if none has, else O(expired · log n).
fn live_len(hash: &Hash, now: u64, budget: &mut Budget<'_>) -> Result<usize, Error> {
    let mut refused = None;
    let live = hash.count_live(now, &mut |fields| match budget.charge(fields * COUNT_STEPS) {
        Ok(()) => Continue(()),
        Err(error) => {
            refused = Some(error);
            Break(())
        }
    });
    live.ok_or_else(|| refused.unwrap_or(Error::Cancelled))
}

/// Removes expired fields: those in `named` (every `step`-th word is a field), and [`PURGE`] more, but none in
/// import mode. The
/// command must be sure to change something. The hash may become empty; the caller then adds to it or removes
/// the key.
///
/// The removals are noted as an effect, followed by the command itself if its row says so. Errors: WRONGTYPE.
fn purge(
    cx: &mut Cx<'_, '_>,
    args: Args<'_>,
    named: Args<'_>,
    step: usize,
    effect: Effect,
) -> Result<(), Error> {
    let (key, now) = (args.at(1), cx.view.due_ms());
    let imports = cx.view.stores_past();
    let mut fields = named.iter().step_by(step);
    let is_gone = |hash: &Hash, field| matches!(hash.expire_at(field), Some(Some(at)) if at <= now);
    let has_any = |hash: &Hash| is_due(hash, now) && (!imports || fields.any(|field| is_gone(hash, field)));
    if !cx.view.hash(key)?.is_some_and(has_any) {
        return Ok(());
    }
    let mut gone: Vec<Vec<u8>> = vec![b"HDEL".to_vec(), key.to_vec()];
    let (fields, others) = (named.iter().step_by(step), if imports { 0 } else { PURGE });
    cx.view.expire_fields(key, fields, others, &mut |field| gone.push(field.to_vec()));
    if gone.len() > 2 {
        let words: Vec<&[u8]> = gone.iter().map(|word| &word[..]).collect();
        cx.effect(&words);
        if effect == Effect::Itself && cx.view.listens() {
            cx.effects.push(own_words(args));
        }
    }
    Ok(())
}
