//! One replica, as its primary knows it.

use parking_lot::Mutex;
use rdb::Dialect;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The words of a replica about itself, before PSYNC.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub client: u64,
    pub address: String,
    /// By REPLCONF listening-port; 0: it did not say.
    pub port: u16,
    /// It reads a snapshot whose length it does not know.
    pub eof: bool,
    /// It is an Evenkeel, and takes its types.
    pub is_ours: bool,
    /// The major version of Valkey; 0: it did not say.
    pub version: u32,
    /// The id and the offset of PSYNC. None: SYNC.
    pub goes_on: Option<(Vec<u8>, i64)>,
    /// SYNC of an old replica, which says nothing afterwards.
    pub is_mute: bool,
}

/// The form of a snapshot. Replicas of one form share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub dialect: Dialect,
    pub version: u16,
    pub foreign: i64,
}

impl Asked {
    /// Its address and port, for people.
    pub fn place(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    pub(super) fn kind(&self, leaves_out_foreign: bool) -> Kind {
        let foreign = match (self.is_ours, leaves_out_foreign) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        };
        match self.version {
            9.. => Kind { dialect: Dialect::Valkey, version: rdb::VERSION_VALKEY_9, foreign },
            _ => Kind { dialect: Dialect::Redis, version: 0, foreign },
        }
    }
}

/// Where a replica is, as INFO names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    Waits,
    Sends,
    Online,
}

/// See the module.
pub struct Peer {
    pub asked: Asked,
    stage: AtomicU8,
    /// Offsets: sent, applied, durable there.
    sent: AtomicU64,
    applied: AtomicU64,
    synced: AtomicU64,
    heard_ms: AtomicU64,
    /// It has said REPLCONF ACK since it was fed.
    pub(super) has_spoken: AtomicBool,
    /// It was sent all of the stream once: from then on it has to keep up.
    caught_up: AtomicBool,
    /// The offset that it had been sent at the last look, once a second; and whether the log has named it
    /// since.
    sent_before: AtomicU64,
    is_named: AtomicBool,
    /// It was sent a whole file in vain, as far as is known: it has said nothing behind it.
    has_file: AtomicBool,
    /// Why its feed is to end.
    ended: Mutex<Option<String>>,
}

/// A replica for INFO, ROLE and EVENKEEL REPLICAS.
#[derive(Clone, Debug)]
pub struct Shown {
    pub client: u64,
    pub address: String,
    pub port: u16,
    pub state: &'static str,
    pub offset: u64,
    pub sent: u64,
    pub lag_s: u64,
    pub lag_bytes: u64,
    /// How long ago the stream was where it is now.
    pub lag_ms: u64,
    pub is_ours: bool,
    pub version: u32,
}

fn limit_text(bytes: u64) -> String {
    if bytes == 0 { "unlimited".to_owned() } else { format!("{bytes} bytes") }
}

impl Peer {
    pub(super) fn new(asked: Asked) -> Peer {
        Peer {
            asked,
            stage: AtomicU8::new(Stage::Waits as u8),
            sent: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            heard_ms: AtomicU64::new(stdx::clock::wall_ms()),
            has_spoken: AtomicBool::new(false),
            caught_up: AtomicBool::new(false),
            has_file: AtomicBool::new(false),
            sent_before: AtomicU64::new(0),
            is_named: AtomicBool::new(false),
            ended: Mutex::default(),
        }
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Release);
        self.heard_ms.store(stdx::clock::wall_ms(), Ordering::Relaxed);
    }

    /// Whether it gets the stream.
    pub(super) fn is_fed(&self) -> bool {
        self.stage.load(Ordering::Acquire) == Stage::Online as u8
    }

    pub(super) fn has_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Acquire)
    }

    pub(super) fn catches_up(&self) {
        self.caught_up.store(true, Ordering::Release);
    }

    /// All of the file was sent.
    pub(super) fn note_file(&self) {
        self.has_file.store(true, Ordering::Release);
    }

    /// Whether it took a whole file and then said nothing of having it.
    pub(super) fn took_in_vain(&self) -> bool {
        let is_heard = !self.asked.is_mute && self.asked.goes_on.is_some();
        is_heard && self.has_file.load(Ordering::Acquire) && !self.has_spoken.load(Ordering::Acquire)
    }

    pub(super) fn note_sent(&self, offset: u64) {
        self.sent.store(offset, Ordering::Relaxed);
    }

    /// Notes what it says. An empty line is a sign of life.
    pub(super) fn note_ack(&self, offset: Option<u64>, synced: Option<u64>) {
        self.heard_ms.store(stdx::clock::wall_ms(), Ordering::Relaxed);
        if let Some(offset) = offset {
            self.applied.fetch_max(offset, Ordering::AcqRel);
            self.has_spoken.store(true, Ordering::Release);
        }
        if let Some(synced) = synced {
            self.synced.fetch_max(synced, Ordering::AcqRel);
        }
    }

    /// The offset that it has said to have; 0: it has said nothing.
    pub(super) fn applied_offset(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The offset that it has, as it said last: applied, or durable.
    pub(super) fn has_up_to(&self, durable: bool) -> u64 {
        let figure = if durable { &self.synced } else { &self.applied };
        figure.load(Ordering::Acquire)
    }

    pub(super) fn has(&self, offset: u64, durable: bool) -> bool {
        self.has_up_to(durable) >= offset
    }

    /// Seconds since it was heard.
    pub(super) fn lag_s(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed)) / 1000
    }

    /// Looks once a second how it keeps up with the end of the stream. A sentence, once, if more waits for it
    /// than the soft limit, or half of the hard one, allows.
    pub(super) fn look(&self, end: u64, (hard, soft): (u64, u64)) -> Option<String> {
        let sent = self.sent.load(Ordering::Relaxed);
        let rate = sent.saturating_sub(self.sent_before.swap(sent, Ordering::Relaxed));
        let waits = end.saturating_sub(sent);
        let is_over = |limit: u64| limit > 0 && waits > limit;
        if !is_over(soft) && !is_over(hard / 2) {
            // Not at once: it may stay close to the limit.
            if !is_over(soft / 2) && !is_over(hard / 4) {
                self.is_named.store(false, Ordering::Relaxed);
            }
            return None;
        }
        self.name(waits, rate, (hard, soft))
    }

    /// A sentence, if none was said of it as slow: it is to be closed now, with this much before it.
    pub(super) fn name_at_end(&self, waits: u64, limits: (u64, u64)) -> Option<String> {
        let sent = self.sent.load(Ordering::Relaxed);
        let rate = sent.saturating_sub(self.sent_before.load(Ordering::Relaxed));
        self.name(waits, rate, limits)
    }

    fn name(&self, waits: u64, rate: u64, (hard, soft): (u64, u64)) -> Option<String> {
        let (hard, soft) = (limit_text(hard), limit_text(soft));
        let named = self.is_named.swap(true, Ordering::Relaxed);
        (!named).then(|| {
            format!(
                "{waits} bytes of the stream wait for it, and it took {rate} in the last second; \
                 client-output-buffer-limit replica is {hard}, and {soft} for some time"
            )
        })
    }

    /// Says in the log why it counts as slow.
    pub(super) fn warn(&self, slow: &str) {
        log::warn!("replica {} is slow: {slow}", self.asked.place());
    }

    /// Has its feed end, for a reason.
    pub(super) fn end(&self, why: &str) {
        self.ended.lock().get_or_insert_with(|| why.to_owned());
    }

    pub(super) fn is_ended(&self) -> Option<String> {
        self.ended.lock().clone()
    }

    /// `reached_ms`: when the stream reached an offset.
    pub(super) fn shown(&self, now_ms: u64, end: u64, reached_ms: impl FnOnce(u64) -> u64) -> Shown {
        let stage = self.stage.load(Ordering::Acquire);
        let state = match stage {
            stage if stage == Stage::Waits as u8 => "wait_bgsave",
            stage if stage == Stage::Sends as u8 => "send_bulk",
            _ => "online",
        };
        let offset = self.applied.load(Ordering::Acquire);
        let is_fed = self.is_fed();
        Shown {
            client: self.asked.client,
            address: self.asked.address.clone(),
            port: self.asked.port,
            state,
            offset,
            sent: self.sent.load(Ordering::Relaxed),
            // One that loads a snapshot does not lag.
            lag_s: if is_fed { self.lag_s(now_ms) } else { 0 },
            lag_bytes: if is_fed { end.saturating_sub(offset) } else { 0 },
            lag_ms: match is_fed && offset < end {
                // The first byte that it lacks came then.
                true => now_ms.saturating_sub(reached_ms(offset + 1)),
                false => 0,
            },
            is_ours: self.asked.is_ours,
            version: self.asked.version,
        }
    }
}
