//! Writers, a feed and loads at once, with delays and failures at every step, over many seeds.
//!
//! A cache keeps rows by the rule of this crate: only if no change of their id was reported since their load
//! began. Then
//!
//! - a load that begins after a change was reported contains it (D1), and nothing that was rolled back;
//! - when all is quiet, the rows still kept are those of the database (D1, D2, D3).

use crate::site::open;
use mongod::Server;
use mongod::history::Op;
use mongodb::bson::{Bson, doc};
use source::{Body, Change, Database, Feed, Id, Since};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::rng::Rng;

const IDS: i64 = 6;
/// Written when all else is over: after its report everything is reported.
const LAST: i64 = 1000;

/// A cache of versions; None: there is no such row.
#[derive(Default)]
struct Kept {
    position: u64,
    all: u64,
    marks: HashMap<Id, u64>,
    rows: HashMap<Id, Option<i64>>,
    /// The newest reported version.
    told: HashMap<Id, i64>,
    opened: bool,
    unknown: usize,
    resumed: usize,
    lost: usize,
}

#[derive(Default)]
struct Cache(Mutex<Kept>);

impl Kept {
    fn clear(&mut self) {
        self.position += 1;
        self.all = self.position;
        self.rows.clear();
    }
}

impl Feed for Cache {
    fn opened(&self, since: Since) {
        let mut kept = self.0.lock().unwrap();
        kept.opened = true;
        match since {
            Since::Resumed => kept.resumed += 1,
            Since::Unknown => {
                kept.unknown += 1;
                kept.clear();
            }
        }
    }

    fn changed(&self, changes: &[Change]) {
        let mut kept = self.0.lock().unwrap();
        kept.position += 1;
        for change in changes {
            let position = kept.position;
            kept.marks.insert(change.id.clone(), position);
            kept.rows.remove(&change.id);
            // The scripted server puts the version where a real one puts the time.
            let version = change.committed_ms.unwrap() as i64;
            let told = kept.told.entry(change.id.clone()).or_default();
            *told = version.max(*told);
        }
    }

    fn lost(&self, _: &str) {
        let mut kept = self.0.lock().unwrap();
        kept.lost += 1;
        kept.clear();
    }

    fn caught_up(&self) {}
}

struct Run {
    seed: u64,
    server: Server,
    database: Arc<dyn Database>,
    cache: Cache,
    over: AtomicBool,
}

fn id_of(n: i64) -> Id {
    n.to_string().into_bytes().into()
}

async fn pause(rng: &mut Rng, us: usize) {
    tokio::time::sleep(Duration::from_micros(rng.below(us) as u64)).await;
}

impl Run {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn write(&self) {
        let mut rng = Rng::new(self.seed, 2);
        for _ in 0..80 {
            pause(&mut rng, 3000).await;
            let id = rng.integer(0, IDS - 1);
            // Equal numbers are one id, whatever their type.
            let id = [Bson::Int32(id as i32), Bson::Int64(id), Bson::Double(id as f64)][rng.below(3)].clone();
            self.server.history(|history| match rng.below(100) {
                0 => history.clear(Op::Drop),
                1 => history.clear(Op::Rename),
                2 => history.forget(),
                3..20 => drop(history.remove(id)),
                _ => drop(history.write(id, doc! {})),
            });
        }
    }

    /// Commits writes with a majority, and now and then a failover.
    async fn commit(&self) {
        let mut rng = Rng::new(self.seed, 3);
        while !self.is_over() {
            pause(&mut rng, 2500).await;
            let (n, failover) = (rng.below(4), rng.percent(3));
            self.server.history(|history| {
                history.commit(n);
                if failover && history.uncommitted() > 0 {
                    history.roll_back();
                }
            });
        }
    }

    async fn follow(&self) {
        let mut rng = Rng::new(self.seed, 4);
        while !self.is_over() {
            // Now and then the follower gives up in between.
            let patience = Duration::from_millis(if rng.percent(20) { rng.below(60) as u64 } else { 60_000 });
            let _ = tokio::time::timeout(patience, self.database.follow(&self.cache)).await;
            pause(&mut rng, 4000).await;
        }
    }

    async fn read(&self, reader: u64) -> usize {
        let mut rng = Rng::new(self.seed, 10 + reader);
        let mut loads = 0;
        while !self.is_over() {
            pause(&mut rng, 2500).await;
            if self.cache.0.lock().unwrap().opened {
                let first = rng.integer(0, IDS - 1);
                let ids: Vec<i64> = (first..(first + rng.integer(1, 3)).min(IDS)).collect();
                loads += usize::from(self.load(&ids).await);
            }
        }
        loads
    }

    async fn load(&self, ids: &[i64]) -> bool {
        let (began, told) = {
            let kept = self.cache.0.lock().unwrap();
            (kept.position, kept.told.clone())
        };
        let keys: Vec<Id> = ids.iter().map(|id| id_of(*id)).collect();
        let Ok(rows) = self.database.load(&keys).await else { return false };
        let mut versions: HashMap<Id, i64> = HashMap::new();
        for row in rows {
            let Body::Json(json) = &row.body else { unreachable!() };
            let json = std::str::from_utf8(json).unwrap();
            let version = json.strip_prefix("{\"v\":").and_then(|rest| rest.strip_suffix('}')).unwrap();
            versions.insert(row.id, version.parse().unwrap());
        }
        for (id, key) in ids.iter().zip(keys) {
            let (version, floor) = (versions.get(&key).copied(), told.get(&key).copied().unwrap_or(0));
            let fits = self.server.state().history.was_ever(&Bson::Int64(*id), floor, version);
            let fits = fits || (version.is_none() && floor == 0);
            assert!(fits, "seed {}: version {version:?} of {id} was read after {floor} was told", self.seed);
            let mut kept = self.cache.0.lock().unwrap();
            if kept.all <= began && kept.marks.get(&key).is_none_or(|mark| *mark <= began) {
                kept.rows.insert(key, version);
            }
        }
        true
    }

    /// Ends the writing, waits until all is reported, and compares what is kept.
    async fn settle(&self) {
        self.server.state().chaos = 0;
        let told = async {
            loop {
                self.server.history(|history| history.write(LAST.into(), doc! {}));
                self.server.commit();
                tokio::time::sleep(Duration::from_millis(20)).await;
                if self.cache.0.lock().unwrap().told.contains_key(&id_of(LAST)) {
                    return;
                }
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(60), told).await;
        assert!(told.is_ok(), "seed {}: the feed did not come back", self.seed);
        let kept = self.cache.0.lock().unwrap();
        for (id, version) in &kept.rows {
            let n: i64 = std::str::from_utf8(id).unwrap().parse().unwrap();
            let history = &self.server.state().history;
            let now = history.find(&[n.into()], history.applied_len()).pop();
            let now = now.map(|document| document.get_i64("v").unwrap());
            assert_eq!(*version, now, "seed {}: of {n} an old version is kept", self.seed);
        }
    }
}

/// Returns how many loads succeeded, and how often the feed resumed and began anew.
async fn run(seed: u64) -> [usize; 4] {
    let server = Server::start(seed).await;
    server.state().late = true;
    server.state().chaos = [0, 1, 3, 8][seed as usize % 4];
    let database = open(&server.url(), "columns v");
    let run = Run { seed, server, database, cache: Cache::default(), over: AtomicBool::new(false) };
    let writing = async {
        run.write().await;
        run.settle().await;
        run.over.store(true, Ordering::Relaxed);
    };
    // The waiting getMore of the feed need not be waited for.
    let following = async {
        tokio::select! {
            () = run.follow() => {}
            () = async { while !run.is_over() { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
    };
    let ((), (), (), a, b) = tokio::join!(writing, run.commit(), following, run.read(1), run.read(2));
    let kept = run.cache.0.lock().unwrap();
    [a + b, kept.resumed, kept.unknown, kept.lost]
}

/// EVENKEEL_RACE_SEEDS: how many seeds, from 1 on.
#[tokio::test]
async fn an_old_row_is_never_kept() {
    let seeds: u64 = std::env::var("EVENKEEL_RACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let mut next = 1;
    let mut running = tokio::task::JoinSet::new();
    let mut sums = [0; 4];
    while next <= seeds || !running.is_empty() {
        while next <= seeds && running.len() < 16 {
            running.spawn(run(next));
            next += 1;
        }
        if let Some(done) = running.join_next().await {
            let done = done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
            sums.iter_mut().zip(done).for_each(|(sum, n)| *sum += n);
        }
    }
    let [loads, resumed, unknown, lost] = sums;
    println!(
        "{seeds} seeds: {loads} loads, {resumed} times resumed, {unknown} times anew, {lost} times lost"
    );
    assert!(loads as u64 > seeds * 10 && resumed > 0 && unknown as u64 > seeds && lost > 0);
}
