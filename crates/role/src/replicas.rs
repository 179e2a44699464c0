//! The servers that follow this one, as commands and connections know them. The program provides it.

use command::Error;
use keyspace::Lsn;
use observe::ClientInfo;
use observe::client::waits;
use observe::info::{LostFile, LostWrite, Replication};
use resp::Reply;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The words of a replica about itself, before PSYNC or SYNC.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub client: u64,
    pub loop_id: usize,
    pub address: String,
    /// REPLCONF listening-port; 0: it did not say.
    pub port: u16,
    /// REPLCONF capa eof.
    pub eof: bool,
    /// REPLCONF capa evenkeel.
    pub is_ours: bool,
    /// The major number of REPLCONF version; 0: it did not say.
    pub version: u32,
    /// The id and the offset of PSYNC. None: SYNC.
    pub goes_on: Option<(Vec<u8>, i64)>,
    /// It will not say what it has.
    pub is_mute: bool,
}

/// The servers that follow. See the module.
pub trait Replicas: Send + Sync {
    /// A client follows from now on: gives what it is sent. O(1)
    fn follow(&self, asked: Asked) -> Box<dyn Feed>;

    /// A replica has all up to an offset, and durable up to another. O(replicas)
    fn heard(&self, client: u64, offset: Option<u64>, synced: Option<u64>);

    /// Count of replicas that have all up to an LSN: applied, or durable. O(replicas)
    fn reached(&self, lsn: Lsn, durable: bool) -> usize;

    /// The replica that a client waits for which wants `count` of them to have an LSN, by its client id. None:
    /// there are not as many. O(replicas · log replicas)
    fn lacking(&self, lsn: Lsn, count: usize, durable: bool) -> Option<u64>;

    /// Whether the stream has all up to an LSN, or nobody follows. If not, that is hurried up. O(log turns)
    fn has_counted(&self, lsn: Lsn) -> bool;

    /// A command waits for replicas, until what this gives is dropped. It is run again when one of them says
    /// more.
    fn wait(&self) -> Box<dyn Any + Send>;

    /// Count of replicas that are fed and lag little. O(1)
    fn good(&self) -> usize;

    /// Where the own stream ends: its id, offset and database. None: nobody ever followed.
    fn position(&self) -> Option<(String, u64, usize)>;

    /// This server follows: from here on replicas hear its primary's bytes. Waits for the order thread.
    fn follows(&self);

    /// The data are about to be another history's: those who follow end, and nothing is kept. Waits for the order
    /// thread. O(pieces kept)
    fn data_go(&self);

    /// The data are those of a history up to an offset, in a database, and its stream goes on from there. Waits
    /// for the order thread.
    fn goes_on(&self, id: &str, offset: u64, db: usize);

    /// The stream comes to an end, as nothing changes any more: replicas are asked for their offsets, and this is
    /// the last that is said. Gives the offset. Waits for the order thread.
    fn rests(&self) -> u64;

    /// The stream goes on behind [`Replicas::rests`]. O(1)
    fn wakes(&self);

    /// The offset up to which all is durable that an LSN has. O(log names)
    fn durable(&self, lsn: Lsn) -> u64;

    /// This server leads: the history goes on under a new id, from the end of what its primary said. Waits for
    /// the order thread.
    fn leads(&self);

    /// All data behind a place of a history are about to be replaced by a primary's, which has said this INFO.
    /// `led`: they are this server's own. What is lost is kept. It may take as long as the disk.
    fn loses(&self, from: (&str, u64), info: Option<&str>, led: bool);

    /// Whether the own stream ends with signs of life, such as PING. O(1)
    fn ends_with_signs(&self) -> bool;

    /// The place in the own stream, before the end of a history, up to which a primary has it by its INFO, if
    /// nothing but signs of life is behind it. The stream ends there then. None: there is no such place.
    /// O(bytes behind)
    fn before_signs(&self, end: (&str, u64), info: &str) -> Option<u64>;

    /// Count of writes that were lost to other primaries since the start. O(1)
    fn lost_count(&self) -> u64;

    /// The files of lost writes. For a thread that may wait. Errors: a sentence.
    fn lost_files(&self) -> Result<Vec<LostFile>, String>;

    /// The commands in a file of lost writes, some of them. For a thread that may wait. O(commands). Errors: a
    /// sentence.
    fn lost(&self, name: &str, count: usize) -> Result<Vec<LostWrite>, String>;

    /// The figures of INFO, and the replicas. O(replicas)
    fn figures(&self) -> Replication;
}

/// The stream of one replica, as long as its connection lives.
pub trait Feed: Send {
    /// Writes what comes next, some `room` bytes at most. What is behind a durable LSN waits. It does not wait.
    fn fill(&mut self, out: &mut Reply, room: usize, durable: Option<Lsn>, now_ms: u64) -> Fed;

    /// Bytes that wait for it.
    fn behind_bytes(&self) -> usize;

    /// Names it in the log as slow, unless that was done: it is closed next for what waits.
    fn name_slow(&self);
}

/// The next step of a loop with a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fed {
    /// There is more to write at once.
    More,
    /// Nothing, until the loop is told.
    Wait,
    /// The connection closes, for this reason.
    End(String),
}

/// The words of a client about itself, by REPLCONF.
#[derive(Clone, Default)]
pub struct Said {
    pub address: Option<String>,
    pub port: u16,
    pub eof: bool,
    pub is_ours: bool,
    pub version: u32,
}

/// A command that waits for replicas.
pub struct Waits {
    pub lsn: Lsn,
    pub since_ms: u64,
    /// It is run again when a replica says more, while this is there.
    _asks: Option<Box<dyn Any + Send>>,
    info: Arc<ClientInfo>,
}

/// Text of the error that ends clients' waits when their server begins to follow, as in Redis.
pub const UNBLOCKED: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

/// The reply that ends a wait. O(1)
pub fn unblocked(resp3: bool) -> Vec<u8> {
    let mut out = Reply::new(resp3);
    out.error(UNBLOCKED);
    out.into_bytes()
}

/// The reply that sends a client elsewhere, as in Valkey. O(1)
pub fn redirected(to: &crate::Address, resp3: bool) -> Vec<u8> {
    let mut out = Reply::new(resp3);
    out.error(&format!("REDIRECT {}:{}", to.host, to.port));
    out.into_bytes()
}

impl Waits {
    pub fn new(lsn: Lsn, since_ms: u64, asks: Option<Box<dyn Any + Send>>, info: &Arc<ClientInfo>) -> Waits {
        info.waits.store(waits::WAITS, Ordering::Release);
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waits { lsn, since_ms, _asks: asks, info: info.clone() }
    }

    /// Whether CLIENT UNBLOCK ended it. Errors: it ended it with an error.
    pub fn is_ended(&self) -> Result<bool, Error> {
        match self.info.waits.load(Ordering::Acquire) {
            waits::FAILED => Err(Error::new("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
            how => Ok(how == waits::TIMED_OUT),
        }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.info.waits.store(waits::NOT, Ordering::Release);
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Clients that wait for replicas. A program has one server.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Count of clients that wait for replicas. O(1)
pub fn waiting() -> usize {
    WAITING.load(Ordering::Relaxed)
}

/// Ends a client's wait for replicas, as by its time or with an error. False: it does not wait. O(1)
pub fn end_wait(info: &ClientInfo, with_error: bool) -> bool {
    let how = if with_error { waits::FAILED } else { waits::TIMED_OUT };
    info.waits.compare_exchange(waits::WAITS, how, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
