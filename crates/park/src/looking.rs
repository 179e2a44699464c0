//! Looks of a client that waits for entries to have been pending for long (XREADGROUP with CLAIM): nobody
//! writes when they have been.
//!
//! - L1: a look visits [`FEW_KEYS`] keys; one at many keys goes on with the next turn. Then it says when the
//!   next is due.
//!
//! Cost: O(log n) a key, and the command where something is due.

use super::serving::{FEW_KEYS, hold};
use super::{Means, Park, Served, Waiter};
use command::Claims;
use keyspace::{Keyspace, View};
use resp::Reply;
use std::sync::Arc;

/// The next look of a client.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When it is due (milliseconds since 1970).
    pub at_ms: u64,
    /// The first key it visits, and when the keys before that are due.
    from: usize,
    soonest_ms: u64,
}

impl Look {
    /// The first look of a client that begins to wait. None: it waits for no time. O(options).
    pub fn first(waiter: &Waiter, now_ms: u64) -> Option<Look> {
        Claims::of(waiter.command, waiter.args.args())?;
        Some(Look { at_ms: now_ms, from: 0, soonest_ms: u64::MAX })
    }
}

impl Park {
    /// The first look of a client that has begun to wait.
    pub fn first_look(&self, client: u64, now_ms: u64) -> Option<Look> {
        let waiter = self.tables.lock().by_client.get(&client).cloned()?;
        Look::first(&waiter, now_ms)
    }

    /// Looks at some keys of a client (L1). Gives its command's outcome if it is served, and its next look if
    /// not.
    pub fn look_when_due(
        self: &Arc<Self>,
        means: &mut Means<'_>,
        client: u64,
        look: Look,
    ) -> (Option<Served>, Option<Look>) {
        let waiter = self.tables.lock().by_client.get(&client).cloned();
        let Some(waiter) = waiter else { return (None, None) };
        let Some(claims) = Claims::of(waiter.command, waiter.args.args()) else { return (None, None) };
        let keys: Vec<&[u8]> =
            claims.keys().from(look.from.min(claims.keys().len())).iter().take(FEW_KEYS).collect();
        let mut soonest_ms = look.soonest_ms;
        for (key, due_ms) in keys.iter().zip(due(means, &waiter, &claims, &keys)) {
            if due_ms > means.now_ms {
                soonest_ms = soonest_ms.min(due_ms);
                continue;
            }
            // Another client may be faster. If a writer serves this one at this moment, it looks later.
            soonest_ms = means.now_ms + 1;
            if waiter.claim.take_or_note() {
                let mut out = Reply::new(waiter.resp3);
                if let Some(found) = hold(means, &waiter, &(waiter.db, Box::from(*key)), &mut out) {
                    self.forget(means, &waiter);
                    return (Some(Served::new(&waiter, found, out)), None);
                }
            }
        }
        let next = look.from + keys.len();
        let more = next < claims.keys().len();
        let next = match more {
            true => Look { at_ms: means.now_ms, from: next, soonest_ms },
            false => Look { at_ms: soonest_ms, from: 0, soonest_ms: u64::MAX },
        };
        (None, Some(next))
    }
}

/// When each of these keys is due. O(log n) each.
fn due(means: &mut Means<'_>, waiter: &Waiter, claims: &Claims<'_>, keys: &[&[u8]]) -> Vec<u64> {
    let shards = Keyspace::shards_of(keys.iter().copied());
    let mut view = View::locked(means.keyspace, shards, waiter.db, means.now_ms);
    if waiter.shows_expired {
        view.set_expired_live();
    }
    if view.has_intents() {
        let keys: Vec<(usize, &[u8])> = keys.iter().map(|key| (waiter.db, *key)).collect();
        view.settle(&keys, false);
    }
    let due = keys.iter().map(|key| claims.due_ms(&view, key)).collect();
    means.put_off(view.finish());
    due
}
