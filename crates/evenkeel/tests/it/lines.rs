//! Long writes that lose to each other go one after the other, and no other client waits for them.

use crate::held::{Hold, MANY, await_figure, figure, laden, others_are_served};
use crate::support::{Client, Server, encode, encode_line};

fn why(control: &mut Client, client: &mut Client) -> String {
    let id = client.call("CLIENT ID");
    control.call(&format!("EVENKEEL WHY {}", id.trim_start_matches(':')))
}

/// Makes a client's long write lose a race, and holds its second attempt, which is the first of a line.
fn lost_and_held(
    server: &Server,
    client: &mut Client,
    line: &str,
    points: (&'static str, &'static str),
) -> Hold {
    let mut first = Hold::first_at(server, points.0);
    client.send(encode_line(line));
    first.await_victim();
    others_are_served(server);
    let mut second = Hold::first_at(server, points.1);
    first.release();
    second.await_victim();
    second
}

/// Three clients insert into the middle of a list, each its own name. The first has lost and is held; the
/// others wait for it.
fn three_in_line(server: &Server, [a, b, c]: [&mut Client; 3]) -> Hold {
    let insert = |name: &str| format!("LINSERT list BEFORE e15000 {name}");
    let hold = lost_and_held(server, a, &insert("a"), ("job-end", "job-start"));
    let mut control = server.client();
    for (n, (client, name)) in [(b, "b"), (c, "c")].into_iter().enumerate() {
        client.send(encode_line(&insert(name)));
        await_figure(&mut control, "writes_in_line", |waiting| waiting == n as u64 + 1);
    }
    hold
}

#[test]
fn who_lost_goes_first_and_the_next_of_its_kind_after_it() {
    let Some(server) = laden() else { return };
    let (mut control, mut a, mut b, mut c) =
        (server.client(), server.client(), server.client(), server.client());
    let hold = three_in_line(&server, [&mut a, &mut b, &mut c]);
    // A waiting write holds nothing, and other work on the same key does not join the line.
    assert_eq!((figure(&mut control, "snapshots_open"), figure(&mut control, "worker_jobs_running")), (1, 1));
    others_are_served(&server);
    control.expect("LREM list 1 e16000", ":1");
    hold.release();
    for (client, n) in [(&mut a, 0), (&mut b, 1), (&mut c, 2)] {
        client.expect_reply(&format!(":{}", MANY + n));
    }
    control.expect("LRANGE list 15000 15003", "[\"a\", \"b\", \"c\", \"e15000\"]");
    for client in [&mut b, &mut c] {
        let why = why(&mut control, client);
        assert!(why.contains("waited-for-commit") && why.contains("linsert"), "{why}");
    }
    assert_eq!(figure(&mut control, "writes_in_line"), 0);
}

#[test]
fn a_client_that_goes_leaves_its_line_to_the_next() {
    let Some(server) = laden() else { return };
    let (mut control, mut a, mut b, mut c) =
        (server.client(), server.client(), server.client(), server.client());
    let hold = three_in_line(&server, [&mut a, &mut b, &mut c]);
    // The first and a waiting one leave: commands that were received are done nevertheless.
    drop((a, b));
    await_figure(&mut control, "connected_clients", |clients| clients <= 3);
    hold.release();
    c.expect_reply(&format!(":{}", MANY + 3));
    control.expect("LRANGE list 15000 15003", "[\"a\", \"b\", \"c\", \"e15000\"]");
}

#[test]
fn scripts_stand_in_the_line_of_their_digest_and_first_key() {
    let Some(server) = laden() else { return };
    let (mut control, mut a, mut b, mut c) =
        (server.client(), server.client(), server.client(), server.client());
    let script = "local n = 0 for i = 1, 100000 do n = n + redis.call('LLEN', 'list') * 0 end \
                  redis.call('LINSERT', 'list', 'BEFORE', 'e15000', ARGV[1]) return redis.call('INCR', KEYS[1])";
    let run = |key: &str, name: &str| format!("EVAL \"{script}\" 1 {key} {name}");
    let hold = lost_and_held(&server, &mut a, &run("k", "a"), ("script-end", "script-start"));
    b.send(encode_line(&run("k", "b")));
    await_figure(&mut control, "writes_in_line", |waiting| waiting == 1);
    // The same script with another key is another kind.
    c.expect(&run("other-key", "c"), ":1");
    others_are_served_but_for_the_list(&mut control);
    hold.release();
    a.expect_reply(":1");
    b.expect_reply(":2");
    control.expect("LRANGE list 15000 15003", "[\"c\", \"a\", \"b\", \"e15000\"]");
    let why = why(&mut control, &mut b);
    assert!(why.contains("waited-for-commit") && why.contains("eval"), "{why}");
}

/// Checks that others are served. The length of the list is not checked: it has changed by now.
fn others_are_served_but_for_the_list(control: &mut Client) {
    control.expect("SET mine 1", "+OK");
    control.expect("LINDEX list 0", "\"e0\"");
    control.expect("LSET list 0 e0", "+OK");
}

#[test]
fn scripts_that_are_killed_leave_their_line() {
    let Some(server) = laden() else { return };
    let (mut control, mut a, mut b) = (server.client(), server.client(), server.client());
    let script = "for i = 1, 100000 do redis.call('LLEN', 'list') end \
                  redis.call('LINSERT', 'list', 'BEFORE', 'e15000', ARGV[1]) return redis.call('INCR', KEYS[1])";
    let run = |name: &str| format!("EVAL \"{script}\" 1 k {name}");
    let hold = lost_and_held(&server, &mut a, &run("a"), ("script-end", "script-start"));
    b.send(encode_line(&run("b")));
    await_figure(&mut control, "writes_in_line", |waiting| waiting == 1);
    control.expect("SCRIPT KILL", "+OK");
    hold.release();
    let killed = (a.reply(), b.reply());
    assert!(killed.0.contains("killed by user") && killed.1.contains("killed by user"), "{killed:?}");
    await_figure(&mut control, "writes_in_line", |waiting| waiting == 0);
    // The line is gone: the next write waits for none.
    assert!(a.call(&run("c")).starts_with(':'));
}

/// MSETs of the same keys by many clients. The keys hold the values of one MSET, whichever came last.
#[test]
fn bulks_of_the_same_keys_all_end() {
    let Some(server) = laden() else { return };
    let keys: Vec<String> = (0..1000).map(|i| format!("same:{i}")).collect();
    let mut clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let name = n.to_string();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        keys.iter().for_each(|key| words.extend([key.as_bytes(), name.as_bytes()]));
        client.send(encode(&words).repeat(30));
    }
    for client in &mut clients {
        (0..30).for_each(|_| client.expect_reply("+OK"));
    }
    let mut control = server.client();
    let all = control.call(&format!("MGET {}", keys.join(" ")));
    let last = control.call("GET same:0");
    assert_eq!(all.matches(&last).count(), keys.len());
    assert_eq!(figure(&mut control, "writes_in_line"), 0);
}
