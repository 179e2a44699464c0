//! The server's part in a change of its role ([`role::Role`]): what clients have begun ends first.

use crate::mail::{Mail, Moved};
use crate::{Server, session::flag};
use keyspace::Why;
use role::{Address, replicas};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Flags of clients that hear where to go on.
pub(crate) const HEARS: u32 = flag::MOVES | flag::CAPA_REDIRECT;
/// Clients that are looked at in one go.
const SLICE: usize = 64;
/// Interval of the looks for writes that are under way.
const LOOK: Duration = Duration::from_millis(2);

impl Server {
    /// Makes this server a replica, after the wish: waits for what clients have begun (RO3). For the thread
    /// `role`. O(loops + clients that wait), and what is under way.
    pub fn demote(&self) {
        self.refuse_writes();
        self.pass_loops();
        self.keyspace.set_follows(true);
        self.memory.configure(&self.keyspace, &self.config.live);
        self.end_waits();
        // Commits that were decided before go on to their end.
        self.pass_loops();
        while self.keyspace.has_intents() {
            std::thread::sleep(LOOK);
        }
    }

    /// Refuses long writes that are not decided yet. O(1)
    pub(crate) fn refuse_writes(&self) {
        if self.config.live.replica_read_only.get() {
            self.work.follows.begin();
        }
    }

    /// Waits until all loops have finished what they had begun, however long that takes: a write that is under
    /// way must not come behind the change of a role.
    fn pass_loops(&self) {
        while !self.durability.pass_loops() {
            log::warn!("the change of the role waits for an event loop");
        }
    }

    /// Holds all that would change something until [`Server::thaw`], and waits for what is under way. False: it
    /// takes longer than a time. For the thread `role`. O(loops)
    pub fn freeze(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        self.keyspace.still.set(Why::Role, true);
        if !self.durability.pass_loops() {
            return false;
        }
        while self.keyspace.has_intents() {
            if Instant::now() >= until || self.role.gives_up() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Tells clients that want to know (CLIENT MAINT_NOTIFICATIONS) who leads from now on. None: a failover
    /// was given up, so this server. O(clients)
    pub fn tell_moved(&self, to: Option<&Address>) {
        let moved = to.map(|to| Arc::new(Moved { number: self.role.next_move(), to: to.clone() }));
        for info in self.observe.clients.each().filter(|info| info.flags.load(Ordering::Relaxed) & HEARS != 0)
        {
            let loop_id = info.loop_id.load(Ordering::Acquire) as usize;
            self.send(loop_id, Mail::Moving { client: info.id, to: moved.clone() });
        }
    }

    /// Lets what was held run: it is done, or refused by a replica. O(loops)
    pub fn thaw(&self) {
        self.keyspace.still.set(Why::Role, false);
        (0..self.loops()).for_each(|id| self.send(id, Mail::Retry));
    }

    /// Ends the connection to the primary, soon. O(1)
    pub fn end_link(&self) {
        if let Some(client) = self.role.link_client() {
            self.send(self.loops() - 1, Mail::Kill { client });
        }
    }

    /// Makes this server a primary, if that is still the wish. For the thread `role`, behind the link's end.
    /// O(loops)
    pub fn promote(&self) {
        let leads = self.role.lead(|| {
            self.keyspace.set_follows(false);
            self.memory.configure(&self.keyspace, &self.config.live);
            self.work.follows.end();
        });
        if leads {
            (0..self.loops()).for_each(|id| self.send(id, Mail::Retry));
        }
    }

    /// The offset of the primary's history up to which the log has all. None: there is no log. O(log names)
    pub fn durable_offset(&self) -> Option<u64> {
        let replicas = self.replicas.get().filter(|_| self.config.live.appendonly.get())?;
        self.durability.synced(false).map(|lsn| replicas.durable(lsn))
    }

    /// Ends a client's wait for replicas, as by its time or with an error. False: it does not wait.
    pub(crate) fn end_wait_for_replicas(&self, client: u64, with_error: bool) -> bool {
        let info = self.observe.clients.get(client).filter(|info| replicas::end_wait(info, with_error));
        let Some(info) = info else { return false };
        info.flags.fetch_and(!flag::BLOCKED, Ordering::Relaxed);
        self.send(info.loop_id.load(Ordering::Acquire) as usize, Mail::Retry);
        true
    }

    /// Ends the waits of blocked clients, and closes them.
    fn end_waits(&self) {
        let mut after = 0;
        loop {
            let page = self.observe.clients.page(after, SLICE);
            let Some(last) = page.last() else { return };
            after = last.id;
            for info in page.iter().filter(|info| info.flags.load(Ordering::Relaxed) & flag::BLOCKED != 0) {
                let loop_id = info.loop_id.load(Ordering::Acquire) as usize;
                self.send(loop_id, Mail::Unblock { client: info.id });
            }
        }
    }
}

/// Follows `replica-read-only`.
struct Observer(std::sync::Weak<Server>);

impl config::Observer for Observer {
    fn changed(&self, directive: &config::Directive, live: &config::Live) {
        let Some(server) = self.0.upgrade() else { return };
        if directive.name != "replica-read-only" || !server.keyspace.follows() {
            return;
        }
        match live.replica_read_only.get() {
            true => server.work.follows.begin(),
            false => server.work.follows.end(),
        }
        server.work.follows.set_link(server.role.link_client());
    }
}

pub(crate) fn follow_config(server: &Arc<Server>) {
    server.config.observe(Box::new(Observer(Arc::downgrade(server))));
}
