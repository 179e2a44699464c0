//! The hub with a scripted database.

use super::*;
use crate::{Body, Task};
use std::sync::mpsc::{Receiver, Sender, channel};

type Answer = Result<Vec<Row>, Failure>;
type Load = Box<dyn Fn(&[Id]) -> (Duration, Answer) + Send + Sync>;

/// Answers loads by a function; its feed is open from the start, or broken.
struct Scripted {
    load: Load,
    feed: Option<Failure>,
}

impl Database for Scripted {
    fn accepts(&self, id: &[u8]) -> bool {
        id != b"no"
    }

    fn load<'a>(&'a self, ids: &'a [Id]) -> Task<'a, Answer> {
        let (time, answer) = (self.load)(ids);
        Box::pin(async move {
            tokio::time::sleep(time).await;
            answer
        })
    }

    fn follow<'a>(&'a self, feed: &'a dyn Feed) -> Task<'a, Failure> {
        Box::pin(async move {
            if let Some(failure) = &self.feed {
                return failure.clone();
            }
            feed.opened(Since::Unknown);
            std::future::pending().await
        })
    }
}

struct Told(Sender<Loaded>);

impl Cache for Told {
    fn loaded(&self, loaded: Loaded) {
        let _ = self.0.send(loaded);
    }
    fn changed(&self, _: &[Change], _: bool) -> bool {
        true
    }
    fn lost(&self) {}
}

fn row(id: &Id) -> Row {
    Row { id: id.clone(), body: Body::Json(id.to_vec()), modified_ms: None }
}

fn start(options: &str, database: Scripted) -> (Hub, Arc<Source>, Receiver<Loaded>) {
    start_with(Spec::parse(format!("s s:{{id}} x: {options}").trim().split(' ')).unwrap(), database)
}

/// Passwords and tokens that a driver cites of its url are in no text about the source.
#[test]
fn failures_cite_no_secrets() {
    let url = "postgres://app:Hu%2Fsh@h/d?token=tok1";
    let spec = || Spec::parse(["s", "s:{id}", url]).unwrap();
    let load = |_: &[Id]| (Duration::ZERO, Err(Failure::Refused("`hu` `sh` `tok1` for app".into())));
    let (_hub, source, told) = start_with(spec(), Scripted { load: Box::new(load), feed: None });
    source.want(b"1", ticket(1)).unwrap();
    let expected = Failure::Refused("`***` `***` `***` for app".into());
    let failures = collect(&told, 1).1;
    assert_eq!(failures, [expected]);
    assert_eq!(source.trouble(), Some(failures[0].to_string()));
    let (load, feed) =
        (|_: &[Id]| (Duration::ZERO, Ok(Vec::new())), Failure::Lost("cannot read hu/SH".into()));
    let (_hub, source, _told) = start_with(spec(), Scripted { load: Box::new(load), feed: Some(feed) });
    let feed = FeedState::Broken("change feed cannot be resumed: cannot read ***/***".into());
    while source.feed() != feed {
        std::thread::yield_now();
    }
    assert_eq!(source.last_loss(), "cannot read ***/***");
}

/// Drivers that cannot read a url at all cite no secret of it.
#[test]
fn wrong_urls_are_told_without_their_secrets() {
    for url in [
        "postgres://u:hush@h/d?hush=1",
        "postgres://u:hu?hush=x@h/d",
        "postgres://u:x@h:hush/d",
        "postgres://h/d?port=hush",
        "mongodb://u:hu:hush@h/d",
        "mongodb://u:hush/@h/d",
        "mongodb://u:hush",
        "mongodb://h/d?hush=1",
        "mongodb://h/d?authMechanism=MONGODB-OIDC&authMechanismProperties=hush:1",
        "mysql://u:hush@h/d",
        "sqlite://u:hush@h/d",
        "hush",
    ] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        match crate::open(&Spec::parse(["s", "s:{id}", url]).unwrap()) {
            Err(why) => assert!(!why.to_lowercase().contains("hush"), "{url}: {why}"),
            Ok(_) => assert!(!url.contains("mysql")),
        }
    }
}

fn start_with(spec: Spec, database: Scripted) -> (Hub, Arc<Source>, Receiver<Loaded>) {
    let hub = Hub::start().unwrap();
    let (tell, told) = channel();
    let source = hub.add_with(spec, Arc::new(database), Box::new(Told(tell))).unwrap();
    (hub, source, told)
}

fn ticket(client: u64) -> Option<Ticket> {
    Some(Ticket { loop_id: 0, client })
}

/// Waits until `ids` ids are answered.
fn collect(told: &Receiver<Loaded>, ids: usize) -> (Vec<Asked>, Vec<Failure>) {
    let (mut asked, mut failures) = (Vec::new(), Vec::new());
    while asked.len() < ids {
        let loaded = told.recv_timeout(Duration::from_secs(60)).unwrap();
        asked.extend(loaded.asked);
        failures.extend(loaded.failure);
    }
    (asked, failures)
}

#[test]
fn an_id_is_loaded_once_for_all_who_wait() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    // The first load waits until all is asked for.
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    let load = move |ids: &[Id]| {
        lock(&seen).push(ids.len());
        if ids.iter().any(|id| &**id == b"first") {
            let _ = lock(&wait).recv();
        }
        let rows = ids.iter().filter(|id| !id.starts_with(b"absent")).map(row).collect();
        (Duration::ZERO, Ok(rows))
    };
    let (_hub, source, told) = start("pool 1", Scripted { load: Box::new(load), feed: None });
    source.want(b"first", ticket(1)).unwrap();
    while lock(&loads).is_empty() {
        std::thread::yield_now();
    }
    source.want(b"first", ticket(2)).unwrap();
    for i in 0..20u64 {
        source.want(format!("id{}", i % 10).as_bytes(), ticket(i)).unwrap();
    }
    source.want(b"absent", None).unwrap();
    assert_eq!(source.want(b"no", ticket(9)), Err(Refusal::NoId));
    go.send(()).unwrap();
    let (asked, failures) = collect(&told, 12);
    assert!(failures.is_empty());
    assert_eq!(
        *lock(&loads),
        [1, 11],
        "all that was asked for while the only connection was busy goes together"
    );
    let tickets = |id: &[u8]| asked.iter().find(|asked| &*asked.id == id).unwrap().tickets.len();
    assert_eq!((tickets(b"first"), tickets(b"id3"), tickets(b"absent")), (2, 2, 0));
    let missing: Vec<_> = asked.iter().filter(|asked| asked.row.is_none()).map(|asked| &*asked.id).collect();
    assert_eq!(missing, [b"absent"]);
}

#[test]
fn who_waits_is_answered_when_the_database_is_slow_down_or_has_no_feed() {
    let loads = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = loads.clone();
    let slow = move |_: &[Id]| {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (Duration::from_secs(3600), Ok(Vec::new()))
    };
    let (_hub, source, told) = start("pool 1 timeout 30ms", Scripted { load: Box::new(slow), feed: None });
    source.want(b"1", ticket(1)).unwrap();
    while loads.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    source.want(b"2", ticket(2)).unwrap();
    let (asked, failures) = collect(&told, 2);
    assert_eq!((asked.len(), failures), (2, vec![Failure::Slow, Failure::Slow]));

    let down = |_: &[Id]| (Duration::ZERO, Err(Failure::Down("refused".into())));
    let (_hub, source, told) = start("", Scripted { load: Box::new(down), feed: None });
    source.want(b"1", ticket(1)).unwrap();
    assert_eq!(collect(&told, 1).1, [Failure::Down("refused".into())]);
    assert_eq!(source.trouble(), Some("database is down: refused".into()));

    let load = |ids: &[Id]| (Duration::ZERO, Ok(ids.iter().map(row).collect()));
    let refused = Some(Failure::Refused("wal_level".into()));
    let (_hub, source, told) = start("", Scripted { load: Box::new(load), feed: refused });
    source.want(b"1", ticket(1)).unwrap();
    let (asked, failures) = collect(&told, 1);
    assert!(asked[0].row.is_none() && failures[0].to_string().contains("wal_level"), "{failures:?}");
}

#[test]
fn the_queue_is_bounded_and_ends_with_the_source() {
    let slow = |_: &[Id]| (Duration::from_millis(20), Ok(Vec::new()));
    let (_hub, source, told) = start("pool 1 queue 2", Scripted { load: Box::new(slow), feed: None });
    let full =
        (0..100_000u32).filter(|i| source.want(&i.to_le_bytes(), ticket(1)) == Err(Refusal::Full)).count();
    assert!(full > 0, "a hundred thousand ids within a queue of two");
    source.pause(true);
    assert_eq!(source.want(b"x", ticket(1)), Err(Refusal::Paused));
    source.remove();
    collect(&told, 100_000 - full);
    assert_eq!(source.load().0, 0);
}

#[test]
fn many_misses_are_gathered_until_there_are_enough() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    let load = move |ids: &[Id]| {
        lock(&seen).push(ids.len());
        (Duration::ZERO, Ok(ids.iter().map(row).collect()))
    };
    let mut spec = Spec::parse("s s:{id} x: pool 4".split(' ')).unwrap();
    // Practically for ever, so that the first load makes many of the following ids.
    spec.gather = Duration::from_secs(3600);
    let (_hub, source, told) = start_with(spec, Scripted { load: Box::new(load), feed: None });
    source.want(b"first", ticket(1)).unwrap();
    collect(&told, 1);
    for round in 0..3 {
        for i in 1..ENOUGH as u32 {
            source.want(&[&i.to_le_bytes()[..], &[round]].concat(), ticket(1)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((source.load().0, lock(&loads).len()), (ENOUGH - 1, 1 + usize::from(round)));
        source.want(&[round], ticket(1)).unwrap();
        collect(&told, ENOUGH);
    }
    assert_eq!(*lock(&loads), [1, ENOUGH, ENOUGH, ENOUGH]);
    // A client that waits for further ids is answered when the source ends.
    source.want(b"last", ticket(1)).unwrap();
    source.remove();
    assert_eq!(collect(&told, 1).1.len(), 1);
}

/// After a load found the database down, its return is noticed although no client asks for a row.
#[test]
fn that_a_database_answers_again_is_noticed_by_who_asks_for_its_state() {
    let (down, loads) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_down, count) = (down.clone(), loads.clone());
    let load = move |ids: &[Id]| {
        count.fetch_add(1, Ordering::SeqCst);
        let failure = is_down.load(Ordering::SeqCst).then(|| Failure::Down("refused".into()));
        (Duration::ZERO, failure.map_or_else(|| Ok(ids.iter().map(row).collect()), Err))
    };
    let (_hub, source, told) = start("", Scripted { load: Box::new(load), feed: None });
    source.want(b"1", ticket(1)).unwrap();
    assert_eq!(collect(&told, 1).1.len(), 1);
    let began = Instant::now();
    while began.elapsed() < PROBE_EVERY * 5 / 2 {
        assert_eq!(source.trouble(), Some("database is down: refused".into()));
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = loads.load(Ordering::SeqCst);
    assert!((2..=4).contains(&asked), "asked {asked} times in 2.5 seconds");
    down.store(false, Ordering::SeqCst);
    while source.trouble().is_some() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is down for good");
        std::thread::sleep(Duration::from_millis(1));
    }
    let loaded = std::iter::from_fn(|| told.recv_timeout(Duration::from_secs(60)).ok());
    let asked = loaded.flat_map(|loaded| loaded.asked).find(|asked| asked.row.is_some()).unwrap();
    assert_eq!((&*asked.id, asked.tickets.len()), (&b"1"[..], 0));
}

#[test]
fn a_feed_that_opens_again_says_that_the_database_is_there() {
    let load = |_: &[Id]| (Duration::ZERO, Err(Failure::Down("refused".into())));
    let (_hub, source, told) = start("", Scripted { load: Box::new(load), feed: None });
    source.want(b"1", ticket(1)).unwrap();
    collect(&told, 1);
    assert!(source.trouble().is_some() && source.has_been_ready());
    Feed::opened(&*source, Since::Resumed);
    assert_eq!(source.trouble(), None);
    let failure = Some(Failure::Down("no server".into()));
    let (_hub, source, _told) = start("", Scripted { load: Box::new(load), feed: failure });
    assert!(source.trouble().is_some() && !source.has_been_ready());
}

/// A row that cannot be read is an error for its own clients only.
#[test]
fn a_row_that_cannot_be_read_is_not_taken_for_none() {
    let load = |ids: &[Id]| {
        let rows = ids.iter().map(|id| match &**id {
            b"bad" => Row { body: Body::Unreadable("why".into()), ..row(id) },
            _ => row(id),
        });
        (Duration::ZERO, Ok(rows.collect()))
    };
    let (_hub, source, told) = start("gather 0", Scripted { load: Box::new(load), feed: None });
    for id in [&b"good"[..], b"bad"] {
        source.want(id, None).expect("asked");
    }
    let (mut found, mut failed) = (Vec::new(), Vec::new());
    while found.len() + failed.len() < 2 {
        let loaded = told.recv_timeout(Duration::from_secs(60)).expect("an answer");
        let ids = loaded.asked.into_iter().map(|asked| (asked.id, asked.row.is_some()));
        match loaded.failure {
            None => found.extend(ids),
            Some(failure) => failed.extend(ids.map(|(id, _)| (id, failure.clone()))),
        }
    }
    assert_eq!(found, [(Id::from(&b"good"[..]), true)]);
    assert_eq!(failed, [(Id::from(&b"bad"[..]), Failure::Refused("why".into()))]);
}
