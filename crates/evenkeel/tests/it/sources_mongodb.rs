//! Keys that are documents of a MongoDB: a scripted one that fails at will, and the real one that
//! EVENKEEL_TEST_MONGODB names.

use crate::races::{self, Found, Judge, ROWS, Rows, Shop};
use crate::sources::{figure, floods, random, until, until_figure};
use crate::support::*;
use mongod::bson::{Bson, Document, Timestamp, doc};
use mongod::history::Op;
use mongod::server::Fault;
use mongod::{Site, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Writes without async.
struct Collection(Arc<Site>);

impl Collection {
    fn put(&self, id: impl Into<Bson>, document: Document) {
        let (site, id) = (self.0.clone(), id.into());
        wait(async move { site.put(id, document).await });
    }

    fn remove(&self, id: impl Into<Bson>) {
        let (site, id) = (self.0.clone(), id.into());
        wait(async move { site.remove(id).await });
    }

    fn drop_all(&self) {
        let site = self.0.clone();
        wait(async move { site.drop_collection().await });
    }

    fn add(&self, options: &str) -> String {
        let (url, collection) = (self.0.url(), self.0.collection());
        format!("EVENKEEL SOURCE ADD items item:{{id}} {url} collection {collection} columns n {options}")
    }
}

fn collections(seed: u64) -> Vec<Collection> {
    let sites = wait(async move { Site::all(seed).await });
    sites.into_iter().map(|site| Collection(Arc::new(site))).collect()
}

fn row(n: i32) -> String {
    format!(r#""{{\"n\":{n}}}""#)
}

#[test]
fn documents_and_their_changes_are_read_through() {
    for collection in collections(1) {
        (1..=5).for_each(|id| collection.put(id, doc! { "n": id, "more": "x" }));
        let server = Server::start();
        let mut client = server.client();
        client.expect(&collection.add("negative-ttl 1h connect-timeout 20s timeout 60s"), "+OK");
        client.expect("GET item:1", &row(1));
        client
            .expect("MGET item:2 item:9 item:3 item:03", &format!("[{}, (nil), {}, (nil)]", row(2), row(3)));
        collection.put(1, doc! { "n": 7 });
        until(&mut client, "GET item:1", &row(7));
        collection.put(9, doc! { "n": 9 });
        until(&mut client, "GET item:9", &row(9));
        collection.remove(1);
        until(&mut client, "GET item:1", "(nil)");
        client.expect("GET item:2", &row(2));
        collection.drop_all();
        until(&mut client, "GET item:2", "(nil)");
        collection.put(2, doc! { "n": 3 });
        until(&mut client, "GET item:2", &row(3));
    }
}

/// A scripted server, and Evenkeel in front of it with two rows cached.
fn scripted(options: &str) -> (Server, Client, Arc<mongod::Server>) {
    let mongo = Arc::new(wait(mongod::Server::start(1)));
    put(&mongo, 1, 0);
    put(&mongo, 2, 0);
    let server = Server::start();
    let mut client = server.client();
    let add = format!("EVENKEEL SOURCE ADD items item:{{id}} {} columns n {options}", mongo.url());
    client.expect(add.trim_end(), "+OK");
    until(&mut client, "GET item:1", &row(0));
    until(&mut client, "GET item:2", &row(0));
    (server, client, mongo)
}

fn put(mongo: &mongod::Server, id: i32, n: i32) {
    mongo.history(|history| history.write(id.into(), doc! { "n": n }));
    mongo.commit();
}

fn kill(mongo: &Arc<mongod::Server>) {
    let mongo = mongo.clone();
    wait(async move { mongo.kill().await });
}

fn restart(mongo: &Arc<mongod::Server>) {
    let mongo = mongo.clone();
    wait(async move { mongo.restart().await });
}

#[test]
fn a_stream_that_is_cut_resumes_and_loses_nothing() {
    let (_server, mut client, mongo) = scripted("connect-timeout 1s timeout 2s");
    for n in 1..=3 {
        kill(&mongo);
        put(&mongo, 1, n);
        until_figure(&mut client, "feed", "\"broken\"");
        // Cached rows are answered, and others are an error at once.
        client.expect("GET item:2", &row(0));
        let error = client.call("GET item:50");
        assert!(error.starts_with("-SOURCEDOWN ") || error.starts_with("-SOURCESLOW "), "{error}");
        restart(&mongo);
        until(&mut client, "GET item:1", &row(n));
    }
    assert_eq!(figure(&mut client, "flushes"), "0");
    assert_eq!(figure(&mut client, "last-flush"), "\"\"");
    client.expect("GET item:2", &row(0));
}

/// Several servers in front of one database each follow its changes. A server that loses its place, or ends,
/// takes nothing from the others.
#[test]
fn two_servers_in_front_of_one_database_both_follow_it() {
    let (_server, mut first, mongo) = scripted("connect-timeout 20s timeout 60s");
    let other = Server::start();
    let mut second = other.client();
    let add = format!(
        "EVENKEEL SOURCE ADD items item:{{id}} {} columns n connect-timeout 20s timeout 60s",
        mongo.url()
    );
    second.expect(&add, "+OK");
    let change = |n: i32, clients: &mut [&mut Client]| {
        put(&mongo, 1, n);
        for client in clients {
            until(client, "GET item:1", &row(n));
        }
    };
    until(&mut second, "GET item:1", &row(0));
    (1..20).for_each(|n| change(n, &mut [&mut first, &mut second]));
    let opened = |client: &mut Client| figure(client, "feed-opened").parse::<u64>().unwrap();
    let before = opened(&mut first) + opened(&mut second);
    // One of them gets this error; which one is chance.
    mongo.fail("getMore", Fault::Error(286, "NonResumableChangeStreamError"));
    (20..40).for_each(|n| change(n, &mut [&mut first, &mut second]));
    let deadline = Instant::now() + PATIENCE;
    while opened(&mut first) + opened(&mut second) == before {
        assert!(Instant::now() < deadline, "no stream was opened again");
        std::thread::sleep(Duration::from_millis(2));
    }
    // A stream that is opened again because the machine was slow goes on from its place.
    let has_lost = |client: &mut Client| figure(client, "flushes").parse::<u64>().unwrap() > 0;
    assert_ne!(has_lost(&mut first), has_lost(&mut second));
    second.expect("EVENKEEL SOURCE REMOVE items", "+OK");
    second.expect("GET item:1", "(nil)");
    (40..60).for_each(|n| change(n, &mut [&mut first]));
    second.expect(&add, "+OK");
    (60..80).for_each(|n| change(n, &mut [&mut first, &mut second]));
}

/// By each error that says so, and by a history that does not reach back.
#[test]
fn a_place_that_is_gone_gives_up_everything_and_begins_anew() {
    let (_server, mut client, mongo) = scripted("connect-timeout 20s timeout 20s");
    for (at, code) in [280, 286, 40585].into_iter().enumerate() {
        let opened: u64 = figure(&mut client, "feed-opened").parse().unwrap();
        let label = if code == 40585 { "" } else { "NonResumableChangeStreamError" };
        mongo.fail("getMore", Fault::Error(code, label));
        put(&mongo, 1, 10 * code);
        until(&mut client, "GET item:1", &row(10 * code));
        until_figure(&mut client, "feed-opened", &(opened + 1).to_string());
        let flushes: usize = figure(&mut client, "flushes").parse().unwrap();
        assert!(flushes > at, "{code} flushed nothing");
        until_figure(&mut client, "waiting-removals", "0");
        assert_ne!(figure(&mut client, "items"), "2");
        put(&mongo, 1, code);
        until(&mut client, "GET item:1", &row(code));
        client.expect("GET item:2", &row(0));
    }
    kill(&mongo);
    put(&mongo, 2, 5);
    mongo.history(|history| history.forget());
    until_figure(&mut client, "feed", "\"broken\"");
    client.expect("GET item:2", &row(0));
    restart(&mongo);
    // This change is not reported.
    until(&mut client, "GET item:2", &row(5));
    assert_ne!(figure(&mut client, "last-flush"), "\"\"");
}

#[test]
fn a_stream_of_more_changes_than_can_wait_gives_up_everything() {
    let mongo = wait(mongod::Server::start(1));
    mongo.state().batch = 1000;
    let write = |id: &str, n: u32| {
        mongo.history(|history| history.write(id.into(), doc! { "n": n }));
        mongo.commit();
    };
    ["a", "b"].into_iter().for_each(|id| write(id, 0));
    // Longer ids name no key.
    let many = (0..9000).map(|i| Bson::String(format!("{}{i}", "x".repeat(1000))));
    floods(&mongo.url(), &|n| write("b", n), &|| {
        mongo.history(|history| history.write("a".into(), doc! { "n": 5 }));
        mongo.history(|history| history.insert(many.clone()));
        mongo.commit();
    });
}

/// A scripted server of its own for a seed, whose members are late, fail, and lose their place.
struct Scripted {
    mongo: Arc<mongod::Server>,
    options: String,
    judge: Arc<Known>,
    late: bool,
}

/// Equal numbers are one id, whatever their type.
fn spelled(id: u64) -> Bson {
    if id.is_multiple_of(2) { Bson::Int64(id as i64) } else { Bson::Double(id as f64) }
}

/// A read finds what a majority once had, at least as of what was reported and handled before the read. Where
/// no member is late, it finds at least what an earlier read found.
struct Known {
    mongo: Arc<mongod::Server>,
    /// By row: the number of the oldest write that may be found.
    oldest: [AtomicU64; ROWS as usize],
    monotonic: bool,
}

impl Judge for Known {
    fn before(&self, id: u64) -> u64 {
        self.oldest[id as usize - 1].load(Ordering::SeqCst)
    }

    fn accepts(&self, id: u64, before: u64, found: Found) -> bool {
        let state = self.mongo.state();
        let versions = state.history.versions(&Bson::Int64(id as i64));
        let once =
            versions.into_iter().filter(|(version, .., committed)| *committed && *version >= before as i64);
        let mut once = once.map(|(version, is_there, ..)| (version as u64, is_there));
        let first = once.find(|(version, is_there)| found.fits(is_there.then_some(*version)));
        if let Some((version, _)) = first.filter(|_| self.monotonic) {
            self.oldest[id as usize - 1].fetch_max(version, Ordering::SeqCst);
        }
        first.is_some() || found == Found::Nothing && before == 0
    }

    fn describe(&self, id: u64) -> String {
        let state = self.mongo.state();
        let versions = state.history.versions(&Bson::Int64(id as i64));
        format!("(monotonic {}, dealt with {:?}, history {versions:?})", self.monotonic, state.asked_behind)
    }

    fn allows_errors(&self) -> bool {
        true
    }
}

impl Scripted {
    fn make(seed: u64, state: &mut u64) -> Scripted {
        let mongo = Arc::new(wait(mongod::Server::start(seed)));
        let late = random(state, 2) == 0;
        mongo.state().late = late;
        mongo.state().chaos = random(state, 3) as usize / 2;
        let ttl = if random(state, 3) == 0 { "1s" } else { "1h" };
        let options =
            format!("columns v timeout 5s connect-timeout 1s pool {} ttl {ttl}", 1 + random(state, 4));
        let judge = Known { mongo: mongo.clone(), oldest: Default::default(), monotonic: !late };
        let made = Scripted { mongo, options, judge: Arc::new(judge), late };
        (1..=ROWS).for_each(|id| made.put(id));
        made.mongo.commit();
        made
    }

    /// Notes that no later read may be older than what was reported and handled up to now.
    fn note_dealt_with(&self, shop: &mut Shop) {
        let told = self.mongo.state().asked_behind;
        if told.0 == (Timestamp { time: 0, increment: 0 }) || shop.figure("waiting-removals") > 0 {
            return;
        }
        for id in 1..=ROWS {
            let touched = self.mongo.state().history.touched(&Bson::Int64(id as i64), told);
            self.judge.oldest[id as usize - 1].fetch_max(touched as u64, Ordering::SeqCst);
        }
    }

    fn put(&self, id: u64) {
        self.mongo.history(|history| history.write(spelled(id), doc! {}));
    }

    fn fail(&mut self, state: &mut u64) {
        let labels = ["NonResumableChangeStreamError", "", "ResumableChangeStreamError"];
        let (command, fault) = match random(state, 8) {
            0 => ("getMore", Fault::Error(280, labels[0])),
            1 => ("getMore", Fault::Error(286, labels[0])),
            2 => ("getMore", Fault::Error(40585, labels[1])),
            3 => ("getMore", Fault::CutAfter),
            4 => ("getMore", Fault::CutWithin),
            5 => ("find", Fault::CutBefore),
            6 => ("find", Fault::CutAfter),
            _ => ("getMore", Fault::Error(43, labels[2])),
        };
        self.mongo.fail(command, fault);
    }
}

impl Rows for Scripted {
    fn source(&self) -> String {
        format!("{} collection items {}", self.mongo.url(), self.options)
    }

    fn column(&self) -> &'static str {
        "v"
    }

    /// Writes a document, now and then several in a transaction. One of them may be removed and inserted
    /// again, or get another id.
    fn change(&mut self, id: u64, state: &mut u64) {
        let other = spelled(1 + random(state, ROWS));
        let (id, kind) = (spelled(id), random(state, 8));
        self.mongo.history(|history| match kind {
            0 => history.transact(|history| {
                history.remove(id.clone());
                history.write(other, doc! {});
            }),
            1 => history.transact(|history| {
                history.remove(id.clone());
                history.write(id, doc! {});
                history.write(other, doc! {});
            }),
            2 => history.transact(|history| {
                (1..=ROWS / 2).for_each(|id| _ = history.write(spelled(id), doc! {}));
            }),
            _ => _ = history.write(id, doc! {}),
        });
    }

    fn change_all(&mut self, _state: &mut u64) {
        (1..=ROWS).for_each(|id| self.put(id));
    }

    fn trouble(&mut self, shop: &mut Shop, state: &mut u64) {
        match random(state, 150) {
            0..3 => self.fail(state),
            3 => {
                kill(&self.mongo);
                if random(state, 2) == 0 {
                    self.mongo.history(|history| history.forget());
                }
                self.put(1);
                restart(&self.mongo);
            }
            4 => self.mongo.history(|history| history.clear(Op::Drop)),
            5 => self.mongo.history(|history| history.clear(Op::Rename)),
            6 => self.mongo.history(|history| history.forget()),
            7 => self.mongo.history(|history| history.roll_back()),
            8..20 => {
                let id = Bson::Int32(1 + random(state, ROWS) as i32);
                _ = self.mongo.history(|history| history.remove(id));
            }
            20..110 => {
                let count = random(state, 4) as usize;
                self.mongo.history(|history| history.commit(count));
            }
            _ => self.note_dealt_with(shop),
        }
    }

    fn settle(&mut self) -> Vec<Option<u64>> {
        self.mongo.state().chaos = 0;
        self.mongo.state().late = self.late;
        self.mongo.commit();
        let state = self.mongo.state();
        let version = |id: u64| {
            let found = state.history.find(&[Bson::Int64(id as i64)], state.history.applied_len()).pop();
            found.map(|document| document.get_i64("v").unwrap() as u64)
        };
        (1..=ROWS).map(version).collect()
    }

    fn judge(&self) -> Arc<dyn Judge> {
        self.judge.clone()
    }

    /// A broken feed is opened again after 50 ms and more.
    fn pause_us(&self) -> u64 {
        10_000
    }
}

#[test]
fn no_read_is_older_than_what_a_change_stream_told() {
    races::run(16, 15, |_, seed, state| Scripted::make(seed, state));
}
