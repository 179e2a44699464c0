//! The driver in front of a server that fails, at every step.

use crate::site::{followed, load, open, texts};
use crate::watch::{Event, Follower, Watch};
use mongod::Server;
use mongod::history::Op;
use mongod::server::Fault;
use mongodb::bson::doc;
use source::{Database, Failure, Since};
use std::sync::Arc;
use std::time::Duration;

async fn put(server: &Server, id: i32) {
    server.history(|history| history.write(id.into(), doc! {}));
    server.commit();
}

fn refusal(failures: &[Failure]) -> String {
    match failures.first() {
        Some(Failure::Refused(why)) => why.clone(),
        other => panic!("no refusal: {other:?}"),
    }
}

/// The first failure of a feed, and of a load.
async fn failures(url: &str) -> (Failure, Failure) {
    let database = open(url, "timeout 2s connect-timeout 1s");
    let watch = Watch::default();
    let feed = database.follow(&watch).await;
    assert!(watch.events().is_empty(), "it was opened");
    (feed, load(&database, &["1"]).await.unwrap_err())
}

#[tokio::test]
async fn a_single_server_has_no_feed() {
    let server = Server::start(1).await;
    server.state().standalone = true;
    let database = open(&server.url(), "");
    let watch = Watch::default();
    let why = refusal(&[database.follow(&watch).await]);
    assert!(why.contains("replica set") && why.contains("rs.initiate()"), "{why}");
}

#[tokio::test]
async fn a_wrong_password() {
    let server = Server::start(1).await;
    let (feed, load) = failures(&format!("mongodb://app:wrong@127.0.0.1:{}/shop", server.port)).await;
    for failure in [feed, load] {
        let why = refusal(&[failure]);
        assert!(why.contains("login failed") && !why.contains("wrong@"), "{why}");
    }
}

#[tokio::test]
async fn rights_that_are_missing() {
    let server = Server::start(1).await;
    server.fail("aggregate", Fault::Error(13, ""));
    server.fail("find", Fault::Error(13, ""));
    let (feed, load) = failures(&server.url()).await;
    assert!(refusal(&[feed]).contains("the actions 'find' and 'changeStream' on it"));
    assert!(refusal(&[load]).contains("may not read shop.items"));
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let server = Server::start(1).await;
    server.kill().await;
    let (feed, load) = failures(&server.url()).await;
    assert!(matches!(feed, Failure::Down(_)) && matches!(load, Failure::Down(_)), "{feed:?} {load:?}");
}

/// A load reads what a majority has, at the time of the last report or later.
#[tokio::test]
async fn a_load_asks_for_what_was_told() {
    let server = Server::start(1).await;
    let (database, watch, _follower) = followed(open(&server.url(), "")).await;
    let asked = || server.state().last["find"].get_document("readConcern").unwrap().clone();
    texts(&database, &["1"]).await;
    let opened = asked().get_timestamp("afterClusterTime").unwrap();
    put(&server, 1).await;
    watch.until_told("1").await;
    texts(&database, &["1"]).await;
    assert_eq!(asked().get_str("level").unwrap(), "majority");
    assert!(asked().get_timestamp("afterClusterTime").unwrap() > opened);
    assert_eq!(asked().get_timestamp("afterClusterTime").unwrap(), server.state().history.committed_time());
}

/// Changes while the server was away are reported when it is back.
#[tokio::test]
async fn a_server_that_is_restarted() {
    let server = Server::start(1).await;
    let (database, watch, _follower) = followed(open(&server.url(), "connect-timeout 1s")).await;
    for n in 1..4 {
        watch.clear();
        server.kill().await;
        assert!(matches!(load(&database, &["1"]).await, Err(Failure::Down(_) | Failure::Slow)));
        put(&server, n).await;
        server.restart().await;
        watch.until_opened(Since::Resumed).await;
        watch.until_told(&n.to_string()).await;
        assert!(!watch.events().contains(&Event::Opened(Since::Unknown)));
    }
    assert_eq!(load(&database, &["1", "2", "3"]).await.unwrap().len(), 3);
}

/// The same, and the server no longer knows what happened.
#[tokio::test]
async fn a_place_that_is_gone() {
    let server = Server::start(1).await;
    let (_, watch, _follower) = followed(open(&server.url(), "connect-timeout 1s")).await;
    put(&server, 1).await;
    watch.until_told("1").await;
    watch.clear();
    server.kill().await;
    put(&server, 2).await;
    server.history(|history| history.forget());
    server.restart().await;
    watch.until_opened(Since::Unknown).await;
    put(&server, 3).await;
    watch.until_told("3").await;
    assert!(watch.failures().iter().any(|failure| matches!(failure, Failure::Lost(_))));
    assert!(!watch.events().contains(&Event::Opened(Since::Resumed)));
}

/// Errors that mean a lost place, while the stream goes on and when it is opened; and an unknown error.
#[tokio::test]
async fn errors_that_end_a_stream_for_good() {
    for (code, label) in [
        (280, "NonResumableChangeStreamError"),
        (286, "NonResumableChangeStreamError"),
        (40585, ""),
        (260, ""),
        (4_000_000, ""),
    ] {
        for step in ["getMore", "aggregate"] {
            let server = Server::start(1).await;
            let (_, watch, _follower) = followed(open(&server.url(), "connect-timeout 1s")).await;
            put(&server, 1).await;
            watch.until_told("1").await;
            watch.clear();
            server.fail(step, Fault::Error(code, label));
            server.fail("getMore", Fault::Error(if step == "getMore" { code } else { 43 }, label));
            put(&server, 2).await;
            watch.until_opened(Since::Unknown).await;
            put(&server, 3).await;
            watch.until_told("3").await;
            assert!(
                watch.failures().iter().any(|failure| matches!(failure, Failure::Lost(_))),
                "{code} of {step}"
            );
        }
    }
}

/// Errors after which the stream goes on where it was.
#[tokio::test]
async fn errors_that_pass() {
    for (code, label) in [
        (43, "ResumableChangeStreamError"),
        (11600, ""),
        (10107, ""),
        (234, ""),
        (5, "ResumableChangeStreamError"),
    ] {
        let server = Server::start(1).await;
        let (_, watch, _follower) = followed(open(&server.url(), "connect-timeout 1s")).await;
        watch.clear();
        server.fail("getMore", Fault::Error(code, label));
        put(&server, 1).await;
        watch.until_opened(Since::Resumed).await;
        put(&server, 2).await;
        watch.until_told("1").await;
        watch.until_told("2").await;
        assert!(!watch.events().contains(&Event::Opened(Since::Unknown)), "{code}");
    }
}

/// Each command is once cut off before, after and within, and once never answered. The feed comes back and
/// reports what happened meanwhile, or that it does not know; loads come back.
#[tokio::test]
async fn a_cut_at_every_step() {
    let mut running = tokio::task::JoinSet::new();
    for step in ["ping", "aggregate", "getMore", "find"] {
        for fault in [Fault::CutBefore, Fault::CutAfter, Fault::CutWithin, Fault::Silence] {
            running.spawn(one_cut(step, fault));
        }
    }
    while let Some(done) = running.join_next().await {
        done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
    }
}

async fn one_cut(step: &'static str, fault: Fault) {
    let server = Server::start(1).await;
    server.fail(step, fault);
    let (database, watch, _follower) =
        followed(open(&server.url(), "timeout 800ms connect-timeout 800ms")).await;
    put(&server, 1).await;
    watch.until_told("1").await;
    loaded(&database, 1).await;
    watch.clear();
    server.fail("getMore", Fault::Error(43, "ResumableChangeStreamError"));
    server.fail(step, Fault::CutBefore);
    put(&server, 2).await;
    watch.until_told("2").await;
    loaded(&database, 2).await;
}

/// Loads until it works.
async fn loaded(database: &Arc<dyn Database>, id: i32) {
    for _ in 0..50 {
        match load(database, &[&id.to_string()]).await {
            Ok(rows) => return assert_eq!(rows.len(), 1),
            Err(Failure::Down(_) | Failure::Slow) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("loads do not come back");
}

/// Connections stay open without answers: loads end, the feed notices, and both come back.
#[tokio::test]
async fn connections_that_are_half_open() {
    let server = Server::start(1).await;
    let (database, watch, _follower) =
        followed(open(&server.url(), "timeout 1s connect-timeout 500ms")).await;
    loaded_none(&database).await;
    server.state().frozen = true;
    assert!(matches!(load(&database, &["1"]).await, Err(Failure::Slow | Failure::Down(_))));
    watch.until("a failure", |events| events.iter().any(|event| matches!(event, Event::Failed(_)))).await;
    server.state().frozen = false;
    put(&server, 1).await;
    watch.until_opened(Since::Resumed).await;
    watch.until_told("1").await;
    loaded(&database, 1).await;
}

async fn loaded_none(database: &Arc<dyn Database>) {
    assert!(load(database, &["1"]).await.unwrap().is_empty());
}

/// A slow load does not delay others, and is reported as slow.
#[tokio::test]
async fn a_slow_load() {
    let server = Server::start(1).await;
    let database = open(&server.url(), "timeout 2s");
    put(&server, 1).await;
    loaded(&database, 1).await;
    server.fail("find", Fault::Delay(Duration::from_secs(60)));
    let slow = tokio::spawn({
        let database = database.clone();
        async move { load(&database, &["1"]).await }
    });
    server.until_seen("find", 2).await;
    assert_eq!(load(&database, &["1"]).await.unwrap().len(), 1);
    assert_eq!(slow.await.unwrap(), Err(Failure::Slow));
    server.fail("find", Fault::Error(50, ""));
    assert_eq!(load(&database, &["1"]).await, Err(Failure::Slow));
}

/// A collection is renamed while later events are already there.
#[tokio::test]
async fn a_collection_that_is_renamed() {
    let server = Server::start(1).await;
    let (_, watch, _follower) = followed(open(&server.url(), "")).await;
    server.history(|history| {
        history.write(1.into(), doc! {});
        history.clear(Op::Rename);
        history.write(2.into(), doc! {});
    });
    server.commit();
    watch.until_told("2").await;
    let events = watch.events();
    let at = |event: &Event| events.iter().position(|e| e == event).unwrap();
    let lost = at(&Event::Lost("rename of the collection".into()));
    assert!(at(&Event::Changed("1".into())) < lost && lost < at(&Event::Changed("2".into())));
    assert!(events.contains(&Event::Opened(Since::Resumed)));
}

/// A feed that is given up leaves nothing behind at the server.
#[tokio::test]
async fn cursors_are_closed() {
    let server = Server::start(1).await;
    let (_, watch, follower) = followed(open(&server.url(), "")).await;
    watch.until("silence", |events| events.contains(&Event::CaughtUp)).await;
    assert_eq!(server.state().streams(), 1);
    drop(follower);
    for _ in 0..500 {
        if server.state().streams() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the cursor is still open");
}

/// Loads see what was written before the feed opened and is not with a majority yet: no event will report it.
#[tokio::test]
async fn what_was_written_just_before_the_feed() {
    let server = Server::start(1).await;
    server.history(|history| history.write(1.into(), doc! {}));
    let (database, _, _follower) = followed(open(&server.url(), "timeout 10s")).await;
    let loading = tokio::spawn(async move { load(&database, &["1"]).await });
    server.until_seen("find", 1).await;
    server.commit();
    assert_eq!(loading.await.unwrap().unwrap().len(), 1);
}

/// A write while the feed opens, with a majority only later, is reported: loads may not have seen it.
#[tokio::test]
async fn what_is_written_while_the_feed_is_opened() {
    let server = Server::start(1).await;
    server.state().late = true;
    server.fail("aggregate", Fault::Delay(Duration::from_millis(100)));
    let database = open(&server.url(), "timeout 10s");
    let watch = Arc::new(Watch::default());
    let _follower = Follower::start(database.clone(), watch.clone());
    server.until_seen("aggregate", 1).await;
    server.history(|history| history.write(1.into(), doc! {}));
    watch.until_opened(Since::Unknown).await;
    server.commit();
    watch.until_told("1").await;
    loaded(&database, 1).await;
}
