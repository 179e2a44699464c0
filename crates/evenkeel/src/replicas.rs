//! The servers that follow this one: `replication` feeds them, `exec` and `net` see them as [`role::replicas`].

use durable::History;
pub(crate) mod lost;

use exec::info::{LostFile, LostWrite, Replica, Replication};
use exec::mail::Mail;
use keyspace::{Lsn, Mark};
use persist::stream::HistoryPlace;
use replication::backlog::Marked;
use replication::primary::{self, Host, Primary, Settings};
use resp::Reply;
use role::replicas::{Asked, Fed, Feed, Replicas};
use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Has the server be followed, before its first client. Errors: a thread cannot be made.
pub(crate) fn start(server: &Arc<exec::Server>) -> std::io::Result<()> {
    let loops: Arc<Loops> = Arc::new(Loops((0..server.loops()).map(|_| Loop::default()).collect()));
    let around = Around { server: Arc::downgrade(server), loops: loops.clone() };
    let primary = Primary::start(server.durability.stream.clone(), |_| Box::new(around))?;
    server.config.observe(Box::new(MinReplicas(Arc::downgrade(&primary))));
    let counted = Counted { primary: primary.clone(), server: Arc::downgrade(server) };
    server.durability.count_history(Box::new(counted));
    let followed =
        Followed { primary, loops, server: Arc::downgrade(server), lost: lost::Keeping::default() };
    // A second call would be a mistake of the program; the first stays.
    let _ = server.replicas.set(Box::new(followed));
    Ok(())
}

/// Has `min-replicas-to-write` and `min-replicas-max-lag` hold from the answer of CONFIG SET on.
struct MinReplicas(Weak<Primary>);

impl config::Observer for MinReplicas {
    fn changed(&self, directive: &config::Directive, _: &config::Live) {
        if directive.name.starts_with("min-replicas-") {
            self.0.upgrade().into_iter().for_each(|primary| primary.count_good());
        }
    }
}

/// A loop's connections to replicas.
#[derive(Default)]
struct Loop {
    feeds: AtomicUsize,
}

struct Loops(Vec<Loop>);

/// The server, as those who feed replicas see it.
struct Around {
    server: Weak<exec::Server>,
    loops: Arc<Loops>,
}

impl Host for Around {
    fn begin_snapshot(&self, spool: Arc<dyn persist::Spool>) -> bool {
        self.server.upgrade().is_some_and(|server| server.durability.begin_sync(spool))
    }

    fn tell_loops(&self) {
        let Some(server) = self.server.upgrade() else { return };
        for (id, _) in self.loops.0.iter().enumerate().filter(|(_, l)| l.feeds.load(Ordering::Acquire) > 0) {
            server.send(id, Mail::Fed);
        }
    }

    fn tell_waiting(&self) {
        if let Some(server) = self.server.upgrade() {
            (0..server.loops()).for_each(|id| server.send(id, Mail::Retry));
        }
    }

    fn dir(&self) -> PathBuf {
        self.server.upgrade().map(|server| server.config.live.dir.string().into()).unwrap_or_default()
    }

    fn good(&self, count: usize) {
        let Some(server) = self.server.upgrade() else { return };
        let wanted = server.config.live.min_replicas_to_write.size();
        server.durability.set_few_replicas(count < wanted);
    }

    fn settings(&self) -> Settings {
        let Some(server) = self.server.upgrade() else { return Settings::default() };
        let live = &server.config.live;
        Settings {
            backlog_bytes: live.repl_backlog_bytes.size() as u64,
            backlog_ttl_s: live.repl_backlog_ttl_s.size() as u64,
            ping_period_s: live.repl_ping_period_s.size() as u64,
            timeout_s: live.repl_timeout_s.size() as u64,
            lag_max_s: live.min_replicas_max_lag_s.size() as u64,
            hard_bytes: live.output_limits[1].hard_bytes.size() as u64,
            soft_bytes: live.output_limits[1].soft_bytes.size() as u64,
            spool_max_bytes: live.repl_spool_max_bytes.size() as u64,
            leaves_out_foreign: live.foreign_replicas.get(),
        }
    }

    fn counts(&self, address: &str, port: u16) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        server.cluster.get().is_none_or(|member| member.counts(address, port))
    }
}

/// The history of the data, for those who keep them on disk.
struct Counted {
    primary: Arc<Primary>,
    server: Weak<exec::Server>,
}

impl History for Counted {
    fn mark(&self) -> Option<Mark> {
        self.primary.new_mark()
    }

    fn at(&self, mark: Mark, lsn: Lsn) -> Result<HistoryPlace, String> {
        let Marked { id, offset, db, .. } = self.primary.backlog.at_mark(mark, lsn)?;
        Ok(HistoryPlace { id, offset, db })
    }

    fn forget(&self, mark: Mark) {
        self.primary.backlog.forget_mark(mark);
    }

    fn resumes(&self, place: HistoryPlace) {
        let Some(server) = self.server.upgrade() else { return };
        let follows = server.role.follows();
        if follows {
            // From here on nothing expires by itself: that would be no part of the primary's history.
            server.keyspace.set_follows(true);
        }
        let HistoryPlace { id, offset, .. } = &place;
        match self.primary.resume(&place, follows) {
            Ok(()) => log::info!("the data are those of history {id} up to offset {offset}, which goes on"),
            Err(why) => log::error!("replicas will need full copies: {why}"),
        }
    }

    fn lagging(&self) -> Vec<String> {
        self.primary.lagging()
    }

    fn rests(&self, rests: bool) {
        self.primary.backlog.rest(rests);
    }
}

/// The servers that follow.
struct Followed {
    primary: Arc<Primary>,
    loops: Arc<Loops>,
    server: Weak<exec::Server>,
    lost: lost::Keeping,
}

impl Followed {
    fn dir(&self) -> PathBuf {
        self.server.upgrade().map(|server| server.config.live.dir.string().into()).unwrap_or_default()
    }
}

impl Followed {
    /// Waits until the backlog has all that was told: bytes of the last link may still be on their way to it.
    fn settle(&self) {
        if let Some(server) = self.server.upgrade() {
            server.durability.stream.settle();
        }
    }
}

impl Replicas for Followed {
    fn follow(&self, asked: Asked) -> Box<dyn Feed> {
        let loop_id = asked.loop_id;
        self.loops.0[loop_id].feeds.fetch_add(1, Ordering::AcqRel);
        let feed = self.primary.follow(primary::Asked {
            client: asked.client,
            address: asked.address,
            port: asked.port,
            eof: asked.eof,
            is_ours: asked.is_ours,
            version: asked.version,
            goes_on: asked.goes_on,
            is_mute: asked.is_mute,
        });
        Box::new(Fills { feed, loops: self.loops.clone(), loop_id })
    }

    fn heard(&self, client: u64, offset: Option<u64>, synced: Option<u64>) {
        self.primary.heard(client, offset, synced);
    }

    fn reached(&self, lsn: Lsn, durable: bool) -> usize {
        self.primary.reached(lsn, durable)
    }

    fn lacking(&self, lsn: Lsn, count: usize, durable: bool) -> Option<u64> {
        self.primary.lacking(lsn, count, durable)
    }

    fn has_counted(&self, lsn: Lsn) -> bool {
        self.primary.has_counted(lsn)
    }

    fn wait(&self) -> Box<dyn Any + Send> {
        Box::new(self.primary.wait())
    }

    fn good(&self) -> usize {
        self.primary.good()
    }

    fn position(&self) -> Option<(String, u64, usize)> {
        self.primary.backlog.position()
    }

    fn follows(&self) {
        if let Err(why) = self.primary.follow_another() {
            log::error!("nobody can follow this server: {why}");
        }
    }

    fn data_go(&self) {
        self.settle();
        self.primary.data_go();
    }

    fn goes_on(&self, id: &str, offset: u64, db: usize) {
        self.primary.goes_on(id, offset, db as u32);
    }

    fn rests(&self) -> u64 {
        self.primary.rest()
    }

    fn wakes(&self) {
        self.primary.backlog.rest(false);
    }

    fn durable(&self, lsn: Lsn) -> u64 {
        self.primary.backlog.named_offset(lsn)
    }

    fn leads(&self) {
        if let Err(why) = self.primary.lead() {
            log::error!("the history does not go on: {why}");
        }
    }

    fn loses(&self, from: (&str, u64), info: Option<&str>, led: bool) {
        if let Some(server) = self.server.upgrade() {
            self.lost.keep(&server, &self.primary, (from, info, led));
        }
    }

    fn ends_with_signs(&self) -> bool {
        // The last bytes of the link may still be on their way.
        self.settle();
        self.primary.backlog.ends_with_signs()
    }

    fn before_signs(&self, (id, end): (&str, u64), info: &str) -> Option<u64> {
        self.settle();
        let own = self.primary.figures();
        let lack = replication::lost::lack(Some(info), &own.ids, end, None)
            .filter(|_| own.ids.id == id && own.end == end)?;
        self.primary.backlog.cut_signs(lack.at).then_some(lack.at)
    }

    fn lost_count(&self) -> u64 {
        self.lost.count()
    }

    fn lost_files(&self) -> Result<Vec<LostFile>, String> {
        lost::files(&self.dir())
    }

    fn lost(&self, name: &str, count: usize) -> Result<Vec<LostWrite>, String> {
        lost::writes(&self.dir(), name, count)
    }

    fn figures(&self) -> Replication {
        let (figures, counts) = (self.primary.figures(), &self.primary.counts);
        let live = self.server.upgrade().map(|server| server.config.clone());
        let size = live.as_ref().map_or(0, |config| config.live.repl_backlog_bytes.size() as u64);
        let counted = live.is_some_and(|config| config.live.min_replicas_to_write.get() > 0);
        Replication {
            id: figures.ids.id,
            second: figures.ids.second,
            offset: figures.end,
            replicas: self.primary.shown().into_iter().map(shown).collect(),
            backlog_is_active: figures.is_active,
            backlog_size: size,
            backlog_first: if figures.is_active { figures.first } else { 0 },
            backlog_bytes: figures.bytes,
            memory_bytes: figures.memory_bytes,
            files_in_memory: counts.copies_in_memory.load(Ordering::Relaxed)
                + counts.stream_in_memory.load(Ordering::Relaxed),
            failover: "",
            lost: self.lost.count(),
            good: counted.then(|| self.primary.good()),
            full_syncs: counts.full_syncs.load(Ordering::Relaxed),
            partial_syncs: counts.partial_syncs.load(Ordering::Relaxed),
            partial_refused: counts.partial_refused.load(Ordering::Relaxed),
            full_refused: counts.full_refused.load(Ordering::Relaxed),
        }
    }
}

fn shown(replica: primary::Shown) -> Replica {
    let primary::Shown {
        client,
        address,
        port,
        state,
        offset,
        sent,
        lag_s,
        lag_bytes,
        lag_ms,
        is_ours,
        version,
    } = replica;
    Replica { client, address, port, state, offset, sent, lag_s, lag_bytes, lag_ms, is_ours, version }
}

/// A replica's feed, counted on its loop.
struct Fills {
    feed: primary::Feed,
    loops: Arc<Loops>,
    loop_id: usize,
}

impl Feed for Fills {
    fn fill(&mut self, out: &mut Reply, room: usize, durable: Option<Lsn>, now_ms: u64) -> Fed {
        match self.feed.fill(out, room, durable, now_ms) {
            primary::Fed::More => Fed::More,
            primary::Fed::Wait => Fed::Wait,
            primary::Fed::End(why) => Fed::End(why),
        }
    }

    fn behind_bytes(&self) -> usize {
        usize::try_from(self.feed.behind_bytes()).unwrap_or(usize::MAX)
    }

    fn name_slow(&self) {
        self.feed.name_slow();
    }
}

impl Drop for Fills {
    fn drop(&mut self) {
        self.loops.0[self.loop_id].feeds.fetch_sub(1, Ordering::AcqRel);
    }
}
