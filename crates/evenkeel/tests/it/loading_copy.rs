//! `evenkeel copy` that is killed, meets keys it cannot copy, or goes other ways than TCP; `evenkeel load`
//! likewise.

use crate::support::{Client, PATIENCE, Server, foreign, free_port, run, said};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn place(server: &Server) -> String {
    format!("127.0.0.1:{}", server.addr.port())
}

/// Runs a command whose words are separated by spaces; returns whether it ended well, and its output.
fn run_words(words: &str) -> (bool, String) {
    let output = run(&words.split(' ').collect::<Vec<_>>());
    (output.status.success(), said(&output))
}

/// The way to a server, which lets a limited number of bytes through.
struct Sluice {
    addr: SocketAddr,
    granted: Arc<AtomicI64>,
}

impl Sluice {
    fn before(server: SocketAddr) -> Sluice {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (addr, granted) = (listener.local_addr().expect("its address"), Arc::new(AtomicI64::new(0)));
        let grants = granted.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) =
                    (client.expect("a client"), TcpStream::connect(server).expect("the server"));
                let back = (server.try_clone().expect("a handle"), client.try_clone().expect("a handle"));
                let endless = Arc::new(AtomicI64::new(i64::MAX));
                std::thread::spawn(move || pass(back.0, back.1, &endless));
                let grants = grants.clone();
                std::thread::spawn(move || pass(client, server, &grants));
            }
        });
        Sluice { addr, granted }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, granted: &AtomicI64) {
    let mut buf = [0; 4096];
    while let Ok(got @ 1..) = from.read(&mut buf) {
        while granted.load(SeqCst) <= 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        granted.fetch_sub(got as i64, SeqCst);
        if to.write_all(&buf[..got]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// The number of copied keys in a state file.
fn noted(state: &Path) -> u64 {
    let text = std::fs::read(state).unwrap_or_default();
    let found: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    found["keys"].as_u64().unwrap_or(0)
}

/// Lets a copy come further than its state file says, and kills it. False if it ended by itself.
fn kill_once_it_came_further(mut copy: Child, sluice: &Sluice, state: &Path) -> bool {
    let (before, deadline) = (noted(state), Instant::now() + PATIENCE);
    while noted(state) <= before {
        assert!(Instant::now() < deadline, "it does not come further than {before}");
        if copy.try_wait().expect("its status").is_some() {
            return false;
        }
        // No more than is used: a copy that is slow to begin would end by itself.
        if sluice.granted.load(SeqCst) <= 0 {
            sluice.granted.store(10_000, SeqCst);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    copy.kill().expect("killed");
    copy.wait().expect("its status");
    sluice.granted.store(0, SeqCst);
    true
}

/// All keys with their values, and their times to live in minutes, rounded up.
fn contents(client: &mut Client, keys: usize) -> Vec<String> {
    let mut all = Vec::new();
    for i in 0..keys {
        let key = format!("k:{i}");
        let ttl: i64 = client.call(&format!("TTL {key}"))[1..].parse().expect("seconds");
        all.push(format!(
            "{key} {} {}",
            if ttl > 0 { (ttl + 899) / 900 } else { ttl },
            client.call(&format!("DUMP {key}"))
        ));
    }
    all
}

#[test]
fn a_copy_that_is_killed_again_and_again_goes_on_and_loses_nothing() {
    if foreign() {
        return;
    }
    const KEYS: usize = 12_000;
    let from = Server::start();
    let (folder, mut source) = (tempfile::tempdir().expect("a folder"), from.client());
    let rows: String = (0..KEYS).map(|i| format!("{i},{:0500},name{i}\n", i)).collect();
    let path = folder.path().join("rows.csv");
    std::fs::write(&path, format!("id,text,name\n{rows}")).expect("written");
    let (well, text) =
        run_words(&format!("load {} --key k:{{id}} --ttl 8000 --to {}", path.display(), place(&from)));
    assert!(well, "{text}");
    source.expect("PERSIST k:7", ":1");
    let whole = contents(&mut source, KEYS);
    for existing in ["skip", "replace"] {
        let to = Server::start();
        let (sluice, state) = (Sluice::before(to.addr), folder.path().join(existing));
        let words = format!(
            "copy --from {} --to {} --existing {existing} --resume {}",
            place(&from),
            sluice.addr,
            state.display()
        );
        for _ in 0..3 {
            let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
            command.args(words.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(kill_once_it_came_further(command.spawn().expect("the program"), &sluice, &state));
        }
        let before = noted(&state);
        assert!((1..KEYS as u64).contains(&before), "{before}");
        sluice.granted.store(i64::MAX, SeqCst);
        let (well, text) = run_words(&words);
        assert!(well && text.contains(" by earlier runs") && !text.contains("wrong or refused"), "{text}");
        let mut target = to.client();
        target.expect("DBSIZE", &format!(":{KEYS}"));
        assert!(contents(&mut target, KEYS) == whole, "{existing}: the target has something else");
        // Then it is done.
        let (well, text) = run_words(&words);
        assert!(
            well && text.contains("0 keys as 0 values") && text.contains("12,000 by earlier runs"),
            "{text}"
        );
    }
}

#[test]
fn a_copy_starts_over_when_an_end_was_started_anew_and_refuses_what_cannot_be_resumed() {
    if foreign() {
        return;
    }
    let (port, to) = (free_port(), Server::start());
    let from = Server::start_on(port);
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").display().to_string();
    let words = format!("copy --from 127.0.0.1:{port} --to {} --resume {state}", place(&to));
    let (well, text) = run_words(&words);
    assert!(!well && text.contains("needs --existing skip or replace"), "{text}");
    from.client().expect("MSET a 1 b 2", "+OK");
    let (well, text) = run_words(&format!("{words} --existing skip"));
    assert!(well && text.contains("2 keys as 2 values") && text.contains("2 strings"), "{text}");
    drop(from);
    let from = Server::start_on(port);
    from.client().expect("MSET a new c 3", "+OK");
    let (well, text) = run_words(&format!("{words} --existing skip"));
    assert!(
        well && text.contains("the source was started anew") && text.contains("1 were there already"),
        "{text}"
    );
    to.client().expect("MGET a b c", "[\"1\", \"2\", \"3\"]");
    let (well, text) = run_words(&format!("{words} --existing skip --match a*"));
    assert!(!well && text.contains("is of another copy"), "{text}");
    std::fs::write(&state, "{\"copy\":").expect("written");
    let (well, text) = run_words(&format!("{words} --existing skip"));
    assert!(!well && text.contains("remove it to start over"), "{text}");
    let (well, text) = run_words(&format!("{words}/nowhere --existing skip"));
    assert!(!well && text.contains("state/nowhere"), "{text}");
}

/// A restarted server that keeps nothing has lost the rows in the file: loading does not go on there.
#[test]
fn rows_are_not_gone_on_with_at_a_server_that_was_started_anew() {
    if foreign() {
        return;
    }
    let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
    let (path, state) = (folder.path().join("rows.txt"), folder.path().join("state"));
    std::fs::write(&path, "a\nb\n").expect("written");
    let words = format!(
        "load {} --to 127.0.0.1:{port} --key k:{{line}} --as string --resume {}",
        path.display(),
        state.display()
    );
    let server = Server::start_on(port);
    assert!(run_words(&words).0);
    drop(server);
    let server = Server::start_on(port);
    let (well, text) = run_words(&words);
    assert!(!well && text.contains("the server was started anew since"), "{text}");
    std::fs::remove_file(&state).expect("removed");
    assert!(run_words(&words).0);
    server.client().expect("DBSIZE", ":2");
}

#[test]
fn a_copy_tells_what_it_copied_by_type() {
    if foreign() {
        return;
    }
    let Some(redis) = Server::redis(&[]) else { return };
    let (ours, mut source) = (Server::start(), redis.client());
    source.expect("MSET a 1 b 2", "+OK");
    source.expect("HSET hash f v", ":1");
    source.expect("ZADD zset 1 m", ":1");
    source.expect("RPUSH list x", ":1");
    source.expect("SADD set 1", ":1");
    source.expect("XADD stream 1-1 f v", "\"1-1\"");
    let words = format!("copy --from {} --to {}", place(&redis), place(&ours));
    let (well, text) = run_words(&words);
    let told = "1 hashes, 1 lists, 1 sets, 1 sorted sets, 1 streams, 2 strings";
    assert!(well && text.contains(told) && !text.contains("refused"), "{text}");
    ours.client().expect("DBSIZE", ":7");
    // And back.
    let Some(other) = Server::redis(&[]) else { return };
    let (well, text) = run_words(&format!("copy --from {} --to {}", place(&ours), place(&other)));
    assert!(well && text.contains(told) && !text.contains("refused"), "{text}");
    other.client().expect("XRANGE stream - +", "[[\"1-1\", [\"f\", \"v\"]]]");
}

#[test]
fn rows_from_standard_input_go_to_a_unix_socket_and_keys_from_one_to_another() {
    if foreign() {
        return;
    }
    let servers = [(); 2].map(|()| Server::start_with(&["--unixsocket", "{dir}/socket"]));
    let sockets = servers.each_ref().map(|server| server.dir.path().join("socket").display().to_string());
    let mut load = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["load", "--format", "csv", "--key", "k:{id}", "--to", &sockets[0]])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    load.stdin.take().expect("a pipe").write_all(b"id,v\n1,a\n2,b\n").expect("it reads");
    let output = load.wait_with_output().expect("its output");
    assert!(output.status.success() && said(&output).contains("2 rows as 2 values"), "{}", said(&output));
    let (well, text) = run_words(&format!("copy --from {} --to {}", sockets[0], sockets[1]));
    assert!(well && text.contains("2 keys as 2 values"), "{text}");
    servers[1].client().expect("HGET k:2 v", "\"b\"");
    let (well, text) = run_words("load --format csv --key k:{id} --resume /tmp/state");
    assert!(!well && text.contains("--resume needs a file"), "{text}");
    let (well, text) = run_words(&format!("copy --from {} --to /nowhere/socket", sockets[0]));
    assert!(!well && text.contains("cannot connect to /nowhere/socket"), "{text}");
}

#[test]
fn merged_rows_are_added_to_what_is_there() {
    if foreign() {
        return;
    }
    let (server, folder) = (Server::start(), tempfile::tempdir().expect("a folder"));
    let (path, mut client) = (folder.path().join("rows.csv"), server.client());
    std::fs::write(&path, "g,m,score\nx,a,1\nx,b,2\nx,a,3\n").expect("written");
    client.expect("SADD set:x mine", ":1");
    client.expect("ZADD zset:x 9 a 7 mine", ":2");
    client.expect("RPUSH list:x mine", ":1");
    client.expect("HSET hash:x g old more 1", ":2");
    let state = folder.path().join("state").display().to_string();
    let load = |more: &str| {
        let words = "--existing merge --via commands --to";
        run_words(&format!("load {} {words} {} {more}", path.display(), place(&server)))
    };
    for (more, values) in [
        ("--key set:{g} --as set --value m", "3 rows as 1 values"),
        ("--key zset:{g} --as zset --value m", "3 rows as 1 values"),
        ("--key list:{g} --as list --value m", "3 rows as 1 values"),
        ("--key hash:{g}", "3 rows as 3 values"),
    ] {
        let (well, text) = load(more);
        assert!(well && text.contains(values), "{more}: {text}");
    }
    client.expect_unordered("SMEMBERS set:x", &["mine", "a", "b"]);
    client.expect("ZRANGE zset:x 0 -1 WITHSCORES", r#"["b", "2", "a", "3", "mine", "7"]"#);
    client.expect("LRANGE list:x 0 -1", r#"["mine", "a", "b", "a"]"#);
    client.expect("HMGET hash:x g m more", r#"["x", "a", "1"]"#);
    for (wrong, why) in [
        ("--key k:{m} --as string --value m", "merge is for collections and hashes"),
        ("--key list:{g} --as list --value m --resume ", "--existing replace"),
        ("--key set:{g} --as set --value m --via restore", "cannot be used multiple times"),
    ] {
        let (well, text) = load(&wrong.replace("--resume ", &format!("--resume {state}")));
        assert!(!well && text.contains(why), "{wrong}: {text}");
    }
    let (well, text) = load(&format!("--key set:{{g}} --as set --value m --resume {state}"));
    assert!(well, "{text}");
    client.expect("SCARD set:x", ":3");
}
