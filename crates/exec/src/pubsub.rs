//! Channels: who listens, by loop, and the way of a message to them.
//!
//! ```text
//! PUBLISH ── counts per loop (here, one short lock) ──► one letter per loop ──► that loop's own table ──► its clients
//! ```
//!
//! - B1: the shared table knows only how many subscribers each loop has; who they are each loop knows itself. So
//!   PUBLISH costs O(loops + patterns), and the fan-out is each loop's work, in slices.
//! - B2: the count answered is the number of subscriptions that matched when the message was sent.

use crate::Server;
use crate::mail::{Mail, Published};
use parking_lot::Mutex;
use resp::Reply;
use std::collections::HashMap;
use std::sync::Arc;

/// The three kinds of subscription.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
}

/// Subscribers per loop.
type Counts = Vec<u32>;

#[derive(Default)]
struct Tables {
    channels: HashMap<Arc<[u8]>, Counts>,
    patterns: HashMap<Arc<[u8]>, Counts>,
    shard_channels: HashMap<Arc<[u8]>, Counts>,
}

impl Tables {
    fn of(&mut self, kind: Kind) -> &mut HashMap<Arc<[u8]>, Counts> {
        match kind {
            Kind::Channel => &mut self.channels,
            Kind::Pattern => &mut self.patterns,
            Kind::Shard => &mut self.shard_channels,
        }
    }
}

/// Writes a message as its subscribers see it.
pub fn write(message: &Published, out: &mut Reply) {
    match &message.pattern {
        Some(pattern) => {
            out.push(4);
            out.bulk(b"pmessage");
            out.bulk(pattern);
        }
        None => {
            out.push(3);
            out.bulk(if message.kind == Kind::Shard { b"smessage" } else { b"message" });
        }
    }
    out.bulk(&message.channel);
    out.bulk(&message.payload);
}

/// The shared part.
#[derive(Default)]
pub struct PubSub {
    tables: Mutex<Tables>,
}

impl PubSub {
    /// One more subscriber on a loop.
    pub fn add(&self, kind: Kind, channel: &Arc<[u8]>, loop_id: usize) {
        let mut tables = self.tables.lock();
        let counts = tables.of(kind).entry(channel.clone()).or_default();
        if counts.len() <= loop_id {
            counts.resize(loop_id + 1, 0);
        }
        counts[loop_id] += 1;
    }

    /// One fewer.
    pub fn remove(&self, kind: Kind, channel: &[u8], loop_id: usize) {
        let mut tables = self.tables.lock();
        let table = tables.of(kind);
        if let Some(counts) = table.get_mut(channel) {
            counts[loop_id] = counts[loop_id].saturating_sub(1);
            if counts.iter().all(|n| *n == 0) {
                table.remove(channel);
            }
        }
    }

    /// Sends a message on its way and tells how many subscriptions it matched. O(loops + patterns).
    pub fn publish(&self, server: &Server, shard: bool, channel: &[u8], payload: &[u8]) -> usize {
        let tables = self.tables.lock();
        let direct = if shard { &tables.shard_channels } else { &tables.channels }.get_key_value(channel);
        let matching: Vec<_> = match shard {
            true => Vec::new(),
            false => tables.patterns.iter().filter(|(p, _)| stdx::glob::matches(p, channel, false)).collect(),
        };
        if direct.is_none() && matching.is_empty() {
            return 0;
        }
        let channel: Arc<[u8]> = direct.map_or_else(|| channel.into(), |(name, _)| name.clone());
        let payload: Arc<[u8]> = payload.into();
        let mut sent = 0;
        let kind = if shard { Kind::Shard } else { Kind::Channel };
        let direct = direct.map(|(_, counts)| (kind, None, counts));
        let by_pattern = matching.into_iter().map(|(p, counts)| (Kind::Pattern, Some(p.clone()), counts));
        for (kind, pattern, counts) in direct.into_iter().chain(by_pattern) {
            for (loop_id, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
                sent += *n as usize;
                let (channel, payload, pattern) = (channel.clone(), payload.clone(), pattern.clone());
                server.send(loop_id, Mail::Publish(Published { kind, channel, pattern, payload }));
            }
        }
        sent
    }

    /// How many subscriptions a message to this channel would match now.
    pub fn matching(&self, shard: bool, channel: &[u8]) -> usize {
        let tables = self.tables.lock();
        let sum = |counts: &Counts| counts.iter().sum::<u32>() as usize;
        let direct =
            if shard { &tables.shard_channels } else { &tables.channels }.get(channel).map_or(0, sum);
        let patterns =
            tables.patterns.iter().filter(|(p, _)| !shard && stdx::glob::matches(p, channel, false));
        direct + patterns.map(|(_, counts)| sum(counts)).sum::<usize>()
    }

    /// Active channels that match (PUBSUB CHANNELS, SHARDCHANNELS). O(channels).
    pub fn channels(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Arc<[u8]>> {
        let mut tables = self.tables.lock();
        let names = tables.of(kind).keys();
        names.filter(|name| pattern.is_none_or(|p| stdx::glob::matches(p, name, false))).cloned().collect()
    }

    /// Subscribers of a channel.
    pub fn count(&self, kind: Kind, channel: &[u8]) -> usize {
        self.tables.lock().of(kind).get(channel).map_or(0, |counts| counts.iter().sum::<u32>() as usize)
    }

    /// Distinct channels or patterns with subscribers.
    pub fn len(&self, kind: Kind) -> usize {
        self.tables.lock().of(kind).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len(Kind::Channel) + self.len(Kind::Pattern) + self.len(Kind::Shard) == 0
    }
}
