//! Told commands change a server as they did where they were told.

use exec::{Replay, Server};
use keyspace::View;
use std::sync::Arc;

fn start() -> (Arc<Server>, Replay) {
    let server = Server::start(Arc::default(), 1).unwrap();
    let replay = Replay::new(&server);
    (server, replay)
}

fn apply(replay: &mut Replay, line: &str) -> Result<(), String> {
    replay.apply(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

fn all(replay: &mut Replay, lines: &[&str]) {
    lines.iter().for_each(|line| assert_eq!(apply(replay, line), Ok(()), "{line}"));
}

/// A key as it is, expired or not, and its expiry.
fn found(server: &Server, db: usize, key: &str) -> Option<(Vec<u8>, Option<u64>)> {
    let mut view = View::locked_one(&server.keyspace, key.as_bytes(), db, 1);
    view.set_expired_live();
    let text = view.string(key.as_bytes()).unwrap()?.contiguous().into_owned();
    Some((text, view.expire_ms(key.as_bytes()).flatten()))
}

#[test]
fn nothing_counts_as_expired() {
    let (server, mut replay) = start();
    all(
        &mut replay,
        &[
            "SELECT 3",
            "SET k 1 PXAT 1000",
            "INCR k",
            "APPEND k 3",
            "RENAME k l",
            "SET m 1",
            "PEXPIREAT m 5",
            "HSET h f 1",
            "HPEXPIREAT h 1000 FIELDS 1 f",
            "HINCRBY h f 5",
            "RPUSH q h",
            "SORT q BY nosort GET *->f STORE s",
        ],
    );
    assert_eq!(found(&server, 3, "l"), Some((b"23".to_vec(), Some(1000))));
    assert_eq!(found(&server, 3, "m"), Some((b"1".to_vec(), Some(5))));
    let mut view = View::locked_one(&server.keyspace, b"h", 3, 1);
    view.set_expired_live();
    let hash = view.hash(b"h").unwrap().unwrap();
    assert_eq!((hash.get_at(b"f", 0), hash.expire_at(b"f")), (Some(&b"6"[..]), Some(Some(1000))));
    drop(view);
    all(&mut replay, &["DEL l m"]);
    assert_eq!((found(&server, 3, "l"), server.keyspace.len(3)), (None, 3));
    // A time from now on is one from now on.
    all(&mut replay, &["SET k 1 EX 100"]);
    let at = found(&server, 3, "k").unwrap().1.unwrap();
    assert!((90_000..110_000).contains(&at.saturating_sub(stdx::clock::wall_ms())));
    server.keyspace.check_invariants();
}

#[test]
fn a_group_does_nothing_before_its_end() {
    let (server, mut replay) = start();
    all(&mut replay, &["MULTI", "SET a 1", "SELECT 2", "SET b 2", "MOVE b 4", "SET b 3"]);
    assert!(replay.is_in_group() && server.keyspace.is_empty());
    assert!(apply(&mut replay, "MULTI").unwrap_err().starts_with("MULTI: ERR MULTI calls"));
    all(&mut replay, &["EXEC"]);
    assert!(!replay.is_in_group() && replay.db() == 2);
    let text = |db, key| found(&server, db, key).map(|(text, _)| text);
    assert_eq!(
        (text(0, "a"), text(2, "b"), text(4, "b")),
        (Some(b"1".to_vec()), Some(b"3".to_vec()), Some(b"2".to_vec()))
    );
    all(&mut replay, &["MULTI", "FLUSHALL", "SET a 1", "SWAPDB 2 3", "EXEC", "MULTI", "SET a 2", "DISCARD"]);
    assert_eq!((server.keyspace.len(2), text(3, "a")), (0, Some(b"1".to_vec())));
    // The others of a group take effect.
    all(&mut replay, &["SET d 1", "MULTI", "LPUSH d x", "SET c 1"]);
    assert!(apply(&mut replay, "EXEC").is_err());
    assert_eq!(text(2, "c"), Some(b"1".to_vec()));
}

#[test]
fn what_cannot_be_executed_is_an_error_with_its_name() {
    let (server, mut replay) = start();
    all(&mut replay, &["SET k v"]);
    let error = |replay: &mut Replay, line: &str| apply(replay, line).unwrap_err();
    assert!(error(&mut replay, "LPUSH k 1").starts_with("LPUSH: WRONGTYPE"));
    assert!(error(&mut replay, "NOSUCH k 1").starts_with("NOSUCH: ERR unknown command"));
    for line in ["GET k", "EVAL x 0", "CONFIG SET maxmemory 1", "EXEC", "SET k", "SUBSCRIBE c", "CONFIG"] {
        let name = line.split(' ').next().unwrap();
        assert!(error(&mut replay, line).starts_with(&format!("{name}: ERR ")), "{line}");
    }
    assert!(replay.apply(&[]).is_err());
    assert_eq!(server.keyspace.len(0), 1);
}

#[test]
fn libraries_come_and_go() {
    let (server, mut replay) = start();
    let load = |replay: &mut Replay, name: &str, replaces: bool| {
        let code = format!("#!lua name={name}\nredis.register_function('f{name}', function() end)");
        let mut words: Vec<&[u8]> = vec![b"FUNCTION", b"LOAD"];
        words.extend(replaces.then_some(&b"REPLACE"[..]));
        words.push(code.as_bytes());
        replay.apply(&words)
    };
    assert_eq!(load(&mut replay, "a", false), Ok(()));
    assert_eq!(load(&mut replay, "a", true), Ok(()));
    assert!(load(&mut replay, "a", false).unwrap_err().contains("already exists"));
    assert_eq!(load(&mut replay, "b", true), Ok(()));
    all(&mut replay, &["MULTI", "FUNCTION DELETE a", "SET k v", "EXEC"]);
    let names = |server: &Server| server.scripts.code.libraries().code.keys().cloned().collect::<Vec<_>>();
    assert_eq!((names(&server), server.keyspace.len(0)), (vec!["b".to_string()], 1));
    all(&mut replay, &["FUNCTION FLUSH"]);
    assert!(names(&server).is_empty());
}
