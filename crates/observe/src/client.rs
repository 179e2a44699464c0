//! The part of a client that threads other than its loop can see.

use crate::waits::Request;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Memory of a connection's own state, in bytes, roughly.
const STATE_BYTES: u64 = 1500;

/// A client as other threads see it (CLIENT LIST, CLIENT KILL).
///
/// The client's loop and its long work write the fields, relaxed. Others only set [`ClientInfo::killed`].
#[derive(Debug)]
pub struct ClientInfo {
    pub id: u64,
    pub loop_id: AtomicU32,
    pub address: String,
    pub local_address: String,
    pub fd: i32,
    pub unix: bool,
    /// Milliseconds since 1970.
    pub connected_ms: u64,
    pub last_ms: AtomicU64,
    pub db: AtomicU32,
    pub resp: AtomicU32,
    /// Bits of [`flag`].
    pub flags: AtomicU32,
    pub subscriptions: AtomicU32,
    pub pattern_subscriptions: AtomicU32,
    pub shard_subscriptions: AtomicU32,
    pub watching: AtomicU32,
    /// -1 outside MULTI.
    pub queued: AtomicI64,
    /// The client that gets its invalidation messages; 0: itself; -1: it does not track.
    pub redirect: AtomicI64,
    pub query_bytes: AtomicU64,
    pub query_free: AtomicU64,
    pub reply_bytes: AtomicU64,
    /// Bytes of the commands queued by MULTI.
    pub multi_bytes: AtomicU64,
    /// Bytes of the watched keys.
    pub watch_bytes: AtomicU64,
    /// Bytes that long work holds beside the data, mostly replies.
    pub work_bytes: AtomicU64,
    pub commands: AtomicU64,
    /// The last command, as one more than its number ([`command::places`]); 0 before the first.
    pub last_command: AtomicU32,
    pub net_in: AtomicU64,
    pub net_out: AtomicU64,
    /// Set by CLIENT KILL and by the output limits; the loop then closes the connection.
    pub killed: AtomicBool,
    /// A wait for replicas (WAIT, WAITAOF): [`waits`].
    pub waits: AtomicU32,
    pub text: Mutex<ClientText>,
    /// How long the last command ran, in nanoseconds.
    pub last_ns: AtomicU64,
    /// The end of its last wait for a key, by the monotonic clock.
    pub resumed_ns: AtomicU64,
    /// How long a change of its last command, made on a thread of its own, was held by a pause.
    pub paused_ns: AtomicU64,
    /// The latest slow requests, at most [`HISTORY`](crate::waits::HISTORY).
    pub history: Mutex<VecDeque<Request>>,
}

impl ClientInfo {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        id: u64,
        loop_id: usize,
        address: String,
        local_address: String,
        fd: i32,
        unix: bool,
        now_ms: u64,
    ) -> ClientInfo {
        ClientInfo {
            id,
            loop_id: AtomicU32::new(loop_id as u32),
            address,
            local_address,
            fd,
            unix,
            connected_ms: now_ms,
            last_ms: AtomicU64::new(now_ms),
            db: AtomicU32::new(0),
            resp: AtomicU32::new(2),
            flags: AtomicU32::new(0),
            subscriptions: AtomicU32::new(0),
            pattern_subscriptions: AtomicU32::new(0),
            shard_subscriptions: AtomicU32::new(0),
            watching: AtomicU32::new(0),
            queued: AtomicI64::new(-1),
            redirect: AtomicI64::new(-1),
            query_bytes: AtomicU64::new(0),
            query_free: AtomicU64::new(0),
            reply_bytes: AtomicU64::new(0),
            multi_bytes: AtomicU64::new(0),
            watch_bytes: AtomicU64::new(0),
            work_bytes: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            last_command: AtomicU32::new(0),
            net_in: AtomicU64::new(0),
            net_out: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            waits: AtomicU32::new(waits::NOT),
            text: Mutex::new(ClientText { user: b"default".to_vec(), ..ClientText::default() }),
            last_ns: AtomicU64::new(0),
            resumed_ns: AtomicU64::new(0),
            paused_ns: AtomicU64::new(0),
            history: Mutex::default(),
        }
    }
}

impl ClientInfo {
    /// Name of the last command; `NULL` before the first.
    pub fn command(&self) -> &'static str {
        let number = self.last_command.load(Ordering::Relaxed) as usize;
        number.checked_sub(1).and_then(|at| command::places::all().get(at)).map_or("NULL", |c| c.name)
    }

    /// Memory of the connection besides its buffers, in bytes: what MULTI, WATCH and long work hold for it,
    /// and its own state, roughly.
    pub fn other_bytes(&self) -> u64 {
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        STATE_BYTES + load(&self.multi_bytes) + load(&self.watch_bytes) + load(&self.work_bytes)
    }

    /// Notes which command runs next. Only the client's loop may call it.
    #[inline]
    pub fn runs(&self, number: usize) {
        self.last_command.store(number as u32 + 1, Ordering::Relaxed);
        // Only this loop writes, so no locked instruction is needed.
        self.commands.store(self.commands.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// The parts of [`ClientInfo`] that are not numbers.
#[derive(Default, Clone, Debug)]
pub struct ClientText {
    pub name: Vec<u8>,
    pub lib_name: Vec<u8>,
    pub lib_ver: Vec<u8>,
    pub user: Vec<u8>,
}

/// The values of [`ClientInfo::waits`].
pub mod waits {
    pub const NOT: u32 = 0;
    pub const WAITS: u32 = 1;
    /// CLIENT UNBLOCK ended the wait, as by its time or with an error.
    pub const TIMED_OUT: u32 = 2;
    pub const FAILED: u32 = 3;
}

/// Bits of [`ClientInfo::flags`].
pub mod flag {
    pub const MULTI: u32 = 1;
    pub const BLOCKED: u32 = 2;
    pub const DIRTY_EXEC: u32 = 4;
    pub const PUBSUB: u32 = 8;
    pub const NO_EVICT: u32 = 16;
    pub const NO_TOUCH: u32 = 32;
    pub const CLOSE_SOON: u32 = 64;
    pub const WATCH_DIRTY: u32 = 128;
    pub const MONITOR: u32 = 256;
    pub const TRACKING: u32 = 512;
    pub const BROADCAST: u32 = 1024;
    /// The target of its REDIRECT is gone.
    pub const BROKEN_REDIRECT: u32 = 2048;
    /// It can be sent to another server (CLIENT CAPA REDIRECT).
    pub const CAPA_REDIRECT: u32 = 4096;
    /// It fills the server (CLIENT IMPORT-SOURCE).
    pub const IMPORTS: u32 = 8192;
    /// It hears that another server leads (CLIENT MAINT_NOTIFICATIONS).
    pub const MOVES: u32 = 1 << 21;
    /// It follows this server.
    pub const REPLICA: u32 = 16384;
    /// It is the primary that this server follows.
    pub const PRIMARY: u32 = 1 << 20;
    /// It is connected over TLS.
    pub const SECURE: u32 = 1 << 22;
}
