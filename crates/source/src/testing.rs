//! Shared tools of the drivers' tests: a feed that remembers its reports, and the race between writers, feed
//! and loads.

use crate::{Body, Change, Database, Failure, Feed, Id, Since};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than anything takes that works.
pub const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    Opened(Since),
    Changed(String),
    Lost,
}

#[derive(Default)]
pub struct Recorder {
    told: Mutex<Vec<Told>>,
    /// How often each id was reported to have changed.
    counts: Mutex<HashMap<Id, u64>>,
    caught_up: std::sync::atomic::AtomicU64,
    more: tokio::sync::Notify,
    times: Mutex<Vec<u64>>,
}

impl Recorder {
    fn record(&self, told: Told) {
        self.told.lock().unwrap().push(told);
        self.more.notify_one();
    }

    pub fn all(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    pub fn count(&self, id: &[u8]) -> u64 {
        self.counts.lock().unwrap().get(id).copied().unwrap_or(0)
    }

    /// Waits until everything that has happened is reported.
    pub async fn until_heartbeat(&self) {
        let beats = || self.caught_up.load(std::sync::atomic::Ordering::SeqCst);
        let before = beats();
        self.until("a heartbeat", |_| beats() > before + 1).await;
    }

    /// When the changes were committed, according to the database.
    pub fn times(&self) -> Vec<u64> {
        self.times.lock().unwrap().clone()
    }

    /// Waits until the reports satisfy a condition.
    pub async fn until(&self, what: &str, fits: impl Fn(&[Told]) -> bool) {
        let wait = async {
            while !fits(&self.all()) {
                let _ = tokio::time::timeout(Duration::from_millis(5), self.more.notified()).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "{what} was not told; but {:?}", self.all());
    }

    pub async fn until_opened(&self) -> Since {
        let since = |told: &[Told]| {
            told.iter().rev().find_map(|t| if let Told::Opened(s) = t { Some(*s) } else { None })
        };
        self.until("opened", |told| since(told).is_some()).await;
        since(&self.all()).unwrap()
    }

    pub async fn until_changed(&self, ids: &[&str]) {
        let all = |told: &[Told]| ids.iter().all(|id| told.contains(&Told::Changed((*id).into())));
        self.until(&format!("change of {ids:?}"), all).await;
    }

    pub async fn until_lost(&self) {
        self.until("lost", |told| told.contains(&Told::Lost)).await;
    }

    pub fn forget(&self) {
        self.told.lock().unwrap().clear();
    }
}

impl Feed for Recorder {
    fn opened(&self, since: Since) {
        self.record(Told::Opened(since));
    }

    fn changed(&self, changes: &[Change]) {
        for change in changes {
            *self.counts.lock().unwrap().entry(change.id.clone()).or_default() += 1;
            self.times.lock().unwrap().extend(change.committed_ms);
            self.record(Told::Changed(String::from_utf8_lossy(&change.id).into_owned()));
        }
    }

    fn lost(&self, _why: &str) {
        self.record(Told::Lost);
    }

    fn caught_up(&self) {
        self.caught_up.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Follows until dropped; fails the test if the feed fails.
pub struct Following(tokio::task::JoinHandle<Failure>);

impl Following {
    pub fn start(database: &Arc<dyn Database>, feed: &Arc<Recorder>) -> Following {
        let (database, feed) = (database.clone(), feed.clone());
        Following(tokio::spawn(async move { database.follow(&*feed).await }))
    }

    /// Why it ended.
    pub async fn failure(mut self) -> Failure {
        let ended = tokio::time::timeout(PATIENCE, &mut self.0).await;
        ended.expect("the feed goes on").expect("the feed panicked")
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub fn ids(ids: &[&str]) -> Vec<Id> {
    ids.iter().map(|id| id.as_bytes().into()).collect()
}

/// Loads rows; returns them as text, by id.
pub async fn load(database: &Arc<dyn Database>, asked: &[&str]) -> Vec<(String, String)> {
    shown(&database.load(&ids(asked)).await.expect("loading"))
}

fn shown(rows: &[crate::Row]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let shown = |body: &Body| match body {
        Body::Json(json) => text(json),
        Body::Unreadable(why) => format!("unreadable: {why}"),
        Body::Fields(fields) => {
            fields.iter().map(|(k, v)| format!("{}={}", text(k), text(v))).collect::<Vec<_>>().join(" ")
        }
    };
    let mut rows: Vec<_> = rows.iter().map(|row| (text(&row.id), shown(&row.body))).collect();
    rows.sort();
    rows
}

/// The same from a source with a short timeout: repeated until it works.
pub async fn load_at_last(database: &Arc<dyn Database>, asked: &[&str]) -> Vec<(String, String)> {
    let loading = async {
        loop {
            match database.load(&ids(asked)).await {
                Ok(rows) => return shown(&rows),
                Err(failure) => assert_eq!(failure, Failure::Slow),
            }
        }
    };
    tokio::time::timeout(PATIENCE, loading).await.expect("it is slow for good")
}

/// Pseudo-random numbers from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// The number in `"v":…` of a row.
fn version(body: &Body) -> u64 {
    let Body::Json(json) = body else { panic!("{body:?}") };
    let text = String::from_utf8_lossy(json);
    let after = text.split("\"v\":").nth(1).expect("a version");
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

pub const RACERS: u64 = 6;

/// The seeds of the races: as many as EVENKEEL_TEST_RACES says, or `usual`, which fit into every test run.
pub fn races(usual: u64) -> std::ops::RangeInclusive<u64> {
    let asked = std::env::var("EVENKEEL_TEST_RACES").ok().and_then(|n| n.parse().ok());
    1..=asked.unwrap_or(usual)
}

/// Writers add 1 to column `v` of the rows 1 to RACERS, which begin at 0. After each report of a row, a load
/// must find at least as many updates as were reported (D1). In the end every update was reported, and the
/// rows are as written.
pub async fn race<W, F>(
    database: &Arc<dyn Database>,
    feed: &Arc<Recorder>,
    seed: u64,
    writers: Vec<W>,
    updates: u64,
) where
    W: Fn(u64) -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let written: Arc<Mutex<HashMap<u64, u64>>> = Arc::default();
    let mut tasks = Vec::new();
    for (nr, write) in writers.into_iter().enumerate() {
        let (mut dice, written) = (Dice::new(seed * 31 + nr as u64), written.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..updates {
                let id = 1 + dice.below(RACERS);
                write(id).await;
                *written.lock().unwrap().entry(id).or_default() += 1;
                if dice.below(3) == 0 {
                    tokio::time::sleep(Duration::from_micros(dice.below(3000))).await;
                }
            }
        }));
    }
    let mut dice = Dice::new(seed * 31 + 30);
    let mut checked = 0;
    loop {
        let over = tasks.iter().all(|task| task.is_finished());
        if dice.below(4) == 0 {
            tokio::time::sleep(Duration::from_micros(dice.below(2000))).await;
        }
        let asked: Vec<Id> = (1..=RACERS).map(|id| id.to_string().into_bytes().into()).collect();
        let told: Vec<u64> = asked.iter().map(|id| feed.count(id)).collect();
        let rows = database.load(&asked).await.expect("loading");
        assert_eq!(rows.len(), asked.len());
        for row in rows {
            let at = asked.iter().position(|id| *id == row.id).unwrap();
            let found = version(&row.body);
            assert!(found >= told[at], "seed {seed}: row {} has {found}, but {} were told", at + 1, told[at]);
            checked += 1;
        }
        if over {
            break;
        }
    }
    for task in tasks {
        task.await.expect("writing");
    }
    let written = written.lock().unwrap().clone();
    feed.until("all updates", |_| written.iter().all(|(id, n)| feed.count(id.to_string().as_bytes()) >= *n))
        .await;
    for (id, n) in written {
        let rows = database.load(&[id.to_string().into_bytes().into()]).await.expect("loading");
        assert_eq!((version(&rows[0].body), feed.count(id.to_string().as_bytes())), (n, n), "seed {seed}");
    }
    assert!(checked > 0);
}
