//! Keyspace events: the configured classes, and the channels they are published on.

use crate::PubSub;
use crate::message::Shared;
use config::notify;
use keyspace::{Class, Event};

/// Publishes keyspace events as `notify-keyspace-events` asks.
pub(crate) fn notify(pubsub: &PubSub, events: &[Event]) {
    let wanted = pubsub.config.live.notify.get() as u32;
    for event in events {
        if wanted & notify::KEYSPACE != 0 {
            let channel = keyspace_channel(event.db, &event.key);
            pubsub.announce(false, &channel, || Shared::Own(event.name.as_bytes().into()));
        }
        if wanted & notify::KEYEVENT != 0 {
            let channel = keyevent_channel(event.db, event.name);
            pubsub.announce(false, channel.as_bytes(), || Shared::Own((&*event.key).into()));
        }
    }
}

/// The channel for the events of a key.
pub(crate) fn keyspace_channel(db: usize, key: &[u8]) -> Vec<u8> {
    let mut channel = format!("__keyspace@{db}__:").into_bytes();
    channel.extend_from_slice(key);
    channel
}

/// The channel for the keys of an event.
pub(crate) fn keyevent_channel(db: usize, name: &str) -> String {
    format!("__keyevent@{db}__:{name}")
}

/// The classes of events that the keyspace has to collect, as a set of bits, from the configured flags.
pub fn wanted_classes(flags: u32) -> u32 {
    if flags & (notify::KEYSPACE | notify::KEYEVENT) == 0 {
        return 0;
    }
    let pairs = [
        (notify::GENERIC, Class::Generic),
        (notify::STRING, Class::String),
        (notify::LIST, Class::List),
        (notify::SET, Class::Set),
        (notify::HASH, Class::Hash),
        (notify::ZSET, Class::ZSet),
        (notify::EXPIRED, Class::Expired),
        (notify::EVICTED, Class::Evicted),
        (notify::STREAM, Class::Stream),
        (notify::NEW, Class::New),
        (notify::KEY_MISS, Class::KeyMiss),
    ];
    pairs.iter().filter(|(bit, _)| flags & bit != 0).fold(0, |bits, (_, class)| bits | class.bit())
}
