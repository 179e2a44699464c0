//! Settings as the serving path reads them: one relaxed load, no lock, no parsing.
//!
//! - L1: only [`Config`](super::Config) stores, after a whole CONFIG SET has been validated; any thread may
//!   load.
//! - L2: fields are independent; a reader of two fields may see one old and one new value.

use crate::kind::Parsed;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// A whole number that may change while the server runs.
#[derive(Debug, Default)]
pub struct Number(AtomicI64);

impl Number {
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }

    /// The number as a count or size; a negative setting reads as 0.
    pub fn size(&self) -> usize {
        self.get().max(0) as usize
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }
}

/// A yes or no that may change while the server runs.
#[derive(Debug, Default)]
pub struct Switch(AtomicBool);

impl Switch {
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub fn set(&self, value: bool) {
        self.0.store(value, Relaxed);
    }
}

/// A text that may change while the server runs. Reading costs a reference count.
#[derive(Debug, Default)]
pub struct Text(ArcSwap<Vec<u8>>);

impl Text {
    pub fn get(&self) -> Arc<Vec<u8>> {
        self.0.load_full()
    }

    /// The text as a string, for names and paths. Bytes that are not UTF-8 are replaced.
    pub fn string(&self) -> String {
        String::from_utf8_lossy(&self.0.load()).into_owned()
    }

    pub fn is_empty(&self) -> bool {
        self.0.load().is_empty()
    }

    pub fn set(&self, value: &[u8]) {
        self.0.store(Arc::new(value.to_vec()));
    }
}

/// The clients an action is open to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    No,
    Yes,
    /// Connections from this machine only.
    Local,
}

/// Limits on unsent bytes for one class of clients. 0 means no limit.
#[derive(Debug, Default)]
pub struct OutputLimit {
    /// A client with more unsent bytes is disconnected at once.
    pub hard_bytes: Number,
    /// A client with more unsent bytes for longer than `soft_s` is disconnected.
    pub soft_bytes: Number,
    pub soft_s: Number,
}

/// The settings that commands, connections and background jobs read while the server runs.
#[derive(Debug, Default)]
pub struct Live {
    // Listening and start-up; fixed once the server runs.
    pub port: Number,
    pub bind: Text,
    pub http_port: Number,
    pub http_bind: Text,
    pub http_hosts: Text,
    pub tls_port: Number,
    pub http_tls_port: Number,
    /// 0: one for two cores.
    pub tls_handshake_threads: Number,
    pub unixsocket: Text,
    pub unixsocket_mode: Number,
    pub tcp_backlog: Number,
    pub databases: Number,
    /// 0: one per core. See [`Config::event_loops`](super::Config::event_loops).
    pub event_loops: Number,
    pub demo: Switch,
    /// 0 auto, 1 epoll, 2 io_uring.
    pub io_backend: Number,
    pub pidfile: Text,
    pub logfile: Text,

    // Replicas.
    pub repl_backlog_bytes: Number,
    pub repl_backlog_ttl_s: Number,
    pub repl_ping_period_s: Number,
    pub min_replicas_to_write: Number,
    pub min_replicas_max_lag_s: Number,
    pub repl_spool_max_bytes: Number,
    /// 0 auto, 1 swapdb, 2 flush-before-load, 3 disabled, 4 on-empty-db.
    pub repl_diskless_load: Number,
    pub foreign_replicas: Switch,

    // Connections.
    pub maxclients: Number,
    pub maxclients_per_address: Number,
    pub tracking_max_keys: Number,
    pub timeout_s: Number,
    pub auth_timeout_s: Number,
    pub http_timeout_s: Number,
    pub http_access_log: Switch,
    pub console_writes: Switch,
    pub tcp_keepalive_s: Number,
    pub tls_handshake_s: Number,
    pub tls_handshakes_max: Number,
    /// 0: never.
    pub tls_reload_s: Number,
    pub protected_mode: Switch,
    pub requirepass: Text,
    pub aclfile: Text,
    pub acllog_max_len: Number,
    /// 0 allchannels, 1 resetchannels.
    pub acl_pubsub_default: Number,
    pub proto_max_bulk_bytes: Number,
    pub query_buffer_bytes: Number,
    /// Limits by class: normal, replica, pubsub.
    pub output_limits: [OutputLimit; 3],

    /// Seconds for which a snapshot may be in use; 0 is no limit.
    pub snapshot_age_s: Number,
    /// Bytes that may be kept only for snapshots and streamed replies; 0: a share of memory.
    pub snapshot_retained_bytes: Number,
    /// Bytes that may wait to be freed before clients that remove more must wait; 0: a share of memory.
    pub reclaim_pending_bytes: Number,
    /// Bytes that all long work together may hold beside the data; 0: a share of memory.
    pub work_max_bytes: Number,

    // Commands.
    pub notify: Number,
    pub busy_reply_ms: Number,
    /// Bytes that one Lua state may hold; 0 is no limit.
    pub lua_memory_bytes: Number,
    pub script_max_ms: Number,
    /// Milliseconds for which a script goes on after its client has gone; 0 is no limit.
    pub script_orphan_ms: Number,
    pub debug_command: Number,
    pub protected_configs: Number,
    pub active_expire_effort: Number,
    pub hz: Number,

    // Memory.
    pub maxmemory_bytes: Number,
    /// `maxmemory-clients`: bytes, or a negative percentage of `maxmemory`.
    clients_max: Number,
    pub maxmemory_policy: Number,
    pub maxmemory_samples: Number,

    // Files.
    /// The directory of all files.
    pub dir: Text,
    pub dbfilename: Text,
    /// Pairs of seconds and changes.
    pub save_points: Text,
    pub stop_writes_on_save_error: Switch,
    pub rdb_checksum: Switch,
    /// An index of [`RDB_VERSIONS`](super::RDB_VERSIONS).
    pub rdb_version: Number,
    /// 0 redis, 1 valkey.
    pub rdb_dialect: Number,
    /// Largest number of bytes a second that a snapshot writes; 0 is no limit.
    pub save_rate_bytes: Number,
    /// Bytes that may be kept for a snapshot; 0: a share of memory.
    pub save_retained_bytes: Number,
    /// 0 write, 1 fail, 2 skip.
    pub foreign_types: Number,
    /// 0 refuse, 1 keep-prefix.
    pub load_damaged: Number,
    /// 0 refuse, 1 skip.
    pub load_unknown: Number,
    pub appendonly: Switch,
    pub appendfilename: Text,
    pub appenddirname: Text,
    /// 0 everysec, 1 always, 2 no.
    pub appendfsync: Number,
    /// 0 auto, 1 yes, 2 no.
    pub aof_preallocate: Number,
    pub aof_load_truncated: Switch,
    /// Growth in percent and size from which the log is written anew.
    pub aof_rewrite_percentage: Number,
    pub aof_rewrite_min_bytes: Number,
    /// Bytes that may wait for the log before writers are held.
    pub log_pending_bytes: Number,
    /// And before writes are refused.
    pub log_pending_max_bytes: Number,
    /// Bytes that are kept until they are durable, under everysec.
    pub log_unsynced_bytes: Number,
    pub log_stuck_s: Number,
    /// Flags of `shutdown-on-sigint` and `shutdown-on-sigterm`, in the order of their choices.
    pub shutdown_on_sigint: Number,
    pub shutdown_on_sigterm: Number,

    // Measuring and logging.
    /// 0 debug, 1 verbose, 2 notice, 3 warning, 4 nothing.
    pub loglevel: Number,
    pub slowlog_slower_us: Number,
    pub slowlog_max_len: Number,
    /// -1: large requests are not logged.
    pub large_request_bytes: Number,
    pub large_requests_max: Number,
    /// -1: large replies are not logged.
    pub large_reply_bytes: Number,
    pub large_replies_max: Number,
    pub latency_threshold_ms: Number,
    pub latency_tracking: Switch,
    /// Bytes of the history; 0: none is kept.
    pub history_max_bytes: Number,
    /// 0 auto, 1 always, 2 no.
    pub watch_neighbours: Number,
    pub latency_percentiles: Text,
    pub availability_zone: Text,
    pub otlp_endpoint: Text,
    pub otlp_period_s: Number,
    pub import_mode: Switch,
    /// The server to copy at the start: address and port, or nothing.
    pub replicaof: Text,
    pub masterauth: Text,
    pub masteruser: Text,
    pub serves_stale: Switch,
    pub replica_read_only: Switch,
    pub replica_priority: Number,
    pub replica_announced: Switch,
    pub replica_announce_ip: Text,
    pub replica_announce_port: Number,
    pub shutdown_timeout_s: Number,
    pub repl_timeout_s: Number,
    pub cluster_enabled: Switch,
    pub cluster_coordinator: Text,
    pub cluster_coordinator_user: Text,
    pub cluster_coordinator_password: Text,
    pub cluster_name: Text,
    pub cluster_lease_ttl_ms: Number,
    pub cluster_databases: Number,
    pub cluster_needs_all_slots: Switch,
    pub cluster_reads_when_down: Switch,
    pub cluster_announce_ip: Text,
    pub cluster_announce_hostname: Text,
    pub cluster_announce_port: Number,
    pub cluster_announce_tls_port: Number,
    /// 0 ip, 1 hostname, 2 unknown-endpoint.
    pub cluster_endpoint: Number,
}

impl Live {
    /// Whether a new user may use all channels.
    pub fn acl_all_channels(&self) -> bool {
        self.acl_pubsub_default.get() == 0
    }

    pub fn debug_access(&self) -> Access {
        access(self.debug_command.get())
    }

    pub fn protected_configs_access(&self) -> Access {
        access(self.protected_configs.get())
    }

    /// Sets `maxmemory-clients`, from a number or a percentage.
    pub(crate) fn set_clients_max(&self, value: &Parsed) {
        self.clients_max.set(match *value {
            Parsed::Percent(share) => -share,
            ref bytes => bytes.int(),
        });
    }

    /// Memory that all clients together may take, in bytes; 0 is no limit. A percentage of no limit is none.
    pub fn clients_limit_bytes(&self) -> u64 {
        match self.clients_max.get() {
            share @ ..0 => {
                (self.maxmemory_bytes.get().max(0) as u64 / 100).saturating_mul(share.unsigned_abs())
            }
            bytes => bytes as u64,
        }
    }

    /// The configured percentiles of INFO latencystats. Costs an allocation.
    pub fn percentiles(&self) -> Vec<f64> {
        self.latency_percentiles.string().split_whitespace().filter_map(|p| p.parse().ok()).collect()
    }
}

fn access(choice: i64) -> Access {
    match choice {
        0 => Access::No,
        1 => Access::Yes,
        _ => Access::Local,
    }
}
