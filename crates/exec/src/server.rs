//! The state all loops share: the keyspace, and everything around it.

use crate::act::Actions;
use crate::mail::{Mail, Mailbox};
use config::Config;
use keyspace::Keyspace;
use observe::Observe;
use observe::info;
use role::replicas::Replicas;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use work::works;

/// The state all loops share. See the module.
pub struct Server {
    pub keyspace: Arc<Keyspace>,
    pub config: Arc<Config>,
    /// The users, and what was denied to them.
    pub acl: Arc<acl::Acl>,
    /// Counters, logs, clients, and the waits of clients for each other.
    pub observe: Arc<Observe>,
    /// The history of all that.
    pub past: past::Past,
    pub pubsub: Arc<pubsub::PubSub>,
    /// Clients that keep copies of keys.
    pub tracking: Arc<pubsub::tracking::Tracking>,
    pub park: Arc<park::Park>,
    /// The state that long work shares: threads, snapshots, lines, CLIENT PAUSE.
    pub work: Arc<works::Work>,
    /// Memory in use, and what is evicted.
    pub memory: Arc<memory::Memory>,
    /// Snapshots and the log: what is being saved and loaded.
    pub durability: Arc<durable::Durability>,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    pub scripts: Arc<scripts::Scripts>,
    /// Clients' reports under way.
    pub(crate) reports: Arc<work::reports::Reports>,
    /// The functions of commands that are no function of the keyspace.
    pub actions: &'static Actions,
    /// Databases that are read through.
    pub rows: Arc<rows::Rows>,
    pub started_ms: u64,
    pub run_id: String,
    /// Whether this server follows another one.
    pub role: role::Role,
    pub(crate) loops: Arc<[Mailbox]>,
    pub(crate) shutdown: AtomicBool,
    /// The paths that HTTP shows, and their keys.
    pub http: Arc<pages::Pages>,
    /// The servers that follow this one. Set once, before the first client.
    pub replicas: OnceLock<Box<dyn Replicas>>,
    /// This server as a node of a cluster. Set once, before the first client.
    pub cluster: OnceLock<Arc<cluster::member::Member>>,
    /// The program around the server, for what only the program can do. Set once, before the first client.
    pub(crate) program: OnceLock<Box<dyn Program>>,
    /// The transport of the loops, for INFO; set once by the code that starts them.
    pub multiplexing: OnceLock<&'static str>,
}

/// Services that commands need of the program the server runs in.
pub trait Program: Send + Sync {
    /// The allocator's figures now. Costs microseconds.
    fn allocator(&self) -> info::Allocator;
    /// The allocator's own report, for people to read. May take long.
    fn allocator_report(&self) -> String;
    /// SHUTDOWN: begins an orderly end of the process. Returns at once.
    fn stop(&self);
}

impl Server {
    pub fn loops(&self) -> usize {
        self.loops.len()
    }

    /// How busy this process's cores were in the last second, in thousandths of one core. None: not known.
    pub fn busy_milli(&self) -> Option<u64> {
        self.observe.crowd.busy_milli(stdx::clock::mono_ns())
    }

    pub fn mailbox(&self, loop_id: usize) -> &Mailbox {
        &self.loops[loop_id]
    }

    pub fn send(&self, loop_id: usize, mail: Mail) {
        self.loops[loop_id].send(mail);
    }

    /// Asks every loop to end. Returns at once.
    pub fn shut_down(&self) {
        if !self.shutdown.swap(true, Ordering::AcqRel) {
            self.loops.iter().for_each(|mailbox| mailbox.send(Mail::Shutdown));
        }
    }

    /// The allocator's figures; zero if nobody provides them.
    pub fn allocator(&self) -> info::Allocator {
        self.program.get().map(|program| program.allocator()).unwrap_or_default()
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.load(Ordering::Acquire)
    }
}
