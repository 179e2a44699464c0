//! A published message, and its encoding for subscribers.

use keyspace::Lsn;
use resp::{OwnedArgs, Reply};
use std::ops::Deref;
use std::sync::Arc;

/// The length above which a payload is not copied to each subscriber's buffer, but sent from where it is.
pub(crate) const SHARED: usize = 16 * 1024;

/// The kinds of subscription.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
    /// Lines of MONITOR: see [`crate::monitor`].
    Monitor,
}

/// A published message, on its way to one loop's subscribers.
#[derive(Clone)]
pub struct Published {
    pub kind: Kind,
    /// The channel the message was published to.
    pub channel: Arc<[u8]>,
    /// The pattern that matched it, for pattern subscribers.
    pub pattern: Option<Arc<[u8]>>,
    pub payload: Shared,
    /// The number of the loop's subscriptions that it matched.
    pub count: usize,
    /// The message may tell of effects up to this LSN: it leaves when they are durable (B6).
    pub gate: Lsn,
    /// A subscriber that does not get it; 0: none.
    pub without: u64,
}

/// Shared bytes. A clone copies a pointer.
#[derive(Clone)]
pub enum Shared {
    Own(Arc<[u8]>),
    /// One word of a long command, which stays in memory as a whole.
    Word(Arc<OwnedArgs>, usize),
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Shared::Own(bytes) => bytes,
            Shared::Word(args, i) => args.args().at(*i),
        }
    }
}

/// A message as its subscribers see it.
#[derive(Clone)]
pub enum Encoded {
    Short(Arc<[u8]>),
    /// Begin, payload and end. The payload stays where it is.
    Long([Shared; 3]),
}

impl Encoded {
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        match self {
            Encoded::Short(bytes) => bytes.len(),
            Encoded::Long(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }
}

/// Encodes a message for one protocol version. O(channel + payload); a payload above 16 KB is not copied.
pub fn encode(message: &Published, resp3: bool) -> Encoded {
    if let (Kind::Monitor, Shared::Own(line)) = (message.kind, &message.payload) {
        return Encoded::Short(line.clone());
    }
    let mut out = Reply::new(resp3);
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
    if message.payload.len() <= SHARED {
        out.bulk(&message.payload);
        return Encoded::Short(out.as_bytes().into());
    }
    out.begin_bulk(message.payload.len());
    let mut end = Reply::new(resp3);
    end.end_bulk();
    let own = |part: Reply| Shared::Own(part.as_bytes().into());
    Encoded::Long([own(out), message.payload.clone(), own(end)])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn message(count: usize) -> Published {
        let (channel, payload) = (Arc::from(&b"news"[..]), Shared::Own(Arc::from(&b"hello"[..])));
        Published { kind: Kind::Channel, channel, pattern: None, payload, count, gate: 0, without: 0 }
    }

    #[test]
    fn a_message_is_the_same_in_one_piece_and_in_three() {
        for len in [0, 1, SHARED, SHARED + 1, 3 * SHARED] {
            let mut published = message(1);
            published.payload = Shared::Own(vec![b'x'; len].into());
            for resp3 in [false, true] {
                let bytes = match encode(&published, resp3) {
                    Encoded::Short(bytes) => bytes.to_vec(),
                    Encoded::Long(parts) => parts.iter().flat_map(|part| part.to_vec()).collect(),
                };
                let mut expected = Reply::new(resp3);
                expected.push(3);
                [&b"message"[..], b"news", &published.payload].iter().for_each(|word| expected.bulk(word));
                assert_eq!(bytes, expected.as_bytes());
            }
        }
    }
}
