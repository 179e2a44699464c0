//! CLIENT: filters of LIST and KILL, CAPA, and clients that are closed because all together take too much
//! memory.

use crate::support::{Client, PATIENCE, Server};
use std::time::{Duration, Instant};

/// The names in CLIENT LIST, in its order.
fn names(client: &mut Client, filters: &str) -> Vec<String> {
    let text = client.call(&format!("CLIENT LIST {filters}"));
    let name = |line: &str| line.split(" name=").nth(1)?.split(' ').next().map(str::to_string);
    text.split("\\n").filter_map(name).collect()
}

/// A field of INFO as a number.
fn figure(client: &mut Client, name: &str) -> u64 {
    let text = client.call("INFO everything");
    let rest = text.split(&format!("\\r\\n{name}:")).nth(1).unwrap_or_else(|| panic!("no {name}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn named(server: &Server, name: &str) -> Client {
    let mut client = server.client();
    client.expect(&format!("CLIENT SETNAME {name}"), "+OK");
    client
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn lists_show_the_clients_that_pass_every_filter() {
    let server = Server::start();
    let (mut a, mut b, mut c) = (named(&server, "a"), named(&server, "b"), named(&server, "c"));
    b.expect("SUBSCRIBE news", "[\"subscribe\", \"news\", :1]");
    c.expect("SELECT 3", "+OK");
    c.expect("CLIENT SETINFO lib-name lib", "+OK");
    c.expect("CLIENT CAPA nosuch redirect", "+OK");
    for (filters, wanted) in [
        ("NAME b", &["b"][..]),
        ("NOT-NAME b", &["a", "c"]),
        ("FLAGS P", &["b"]),
        ("NOT-FLAGS P", &["a", "c"]),
        ("DB 3", &["c"]),
        ("NOT-DB 3 NOT-TYPE pubsub", &["a"]),
        ("LIB-NAME lib", &["c"]),
        ("NOT-LIB-NAME lib SKIPME yes", &["b"]),
        ("CAPA r", &["c"]),
        ("IP 127.0.0.1 NOT-CAPA r", &["a", "b"]),
        ("NOT-IP 127.0.0.1", &[]),
        ("USER default NOT-NAME a", &["b", "c"]),
        ("NOT-USER default", &[]),
        ("IDLE 100000", &[]),
    ] {
        assert_eq!(names(&mut a, filters), wanted, "{filters}");
    }
    let ids: Vec<String> = [&mut a, &mut b, &mut c]
        .map(|client| match client.call("CLIENT ID") {
            id if id.starts_with(':') => id[1..].to_string(),
            _ => "0".to_string(),
        })
        .to_vec();
    assert_eq!(names(&mut a, &format!("NOT-ID {} {}", ids[0], ids[2])), ["b"]);
    a.expect("CLIENT LIST NOT-IDLE 1", "-ERR syntax error");
    a.expect("CLIENT LIST DB 16", "-ERR DB number should be between 0 and 15");
    assert!(c.call("CLIENT INFO").contains(" flags=N capa=r db=3 "));
}

#[test]
fn several_clients_are_killed_by_number_and_others_by_what_they_are() {
    let server = Server::start();
    let (mut admin, a, b, c) =
        (named(&server, "admin"), named(&server, "a"), named(&server, "b"), named(&server, "c"));
    let mut clients = [a, b, c];
    let ids: Vec<String> =
        clients.iter_mut().map(|client| client.call("CLIENT ID")[1..].to_string()).collect();
    admin.expect("CLIENT KILL ID 0", "-ERR client-id should be greater than 0");
    admin.expect(&format!("CLIENT KILL ID {} x", ids[0]), "-ERR syntax error");
    admin.expect(&format!("CLIENT KILL ID {} {} 999999", ids[0], ids[1]), ":2");
    assert!(clients[0].is_closed_within(PATIENCE) && clients[1].is_closed_within(PATIENCE));
    eventually("they are gone", || names(&mut admin, "NOT-NAME admin") == ["c"]);
    admin.expect("CLIENT KILL NOT-NAME admin NAME nosuch", ":0");
    admin.expect("CLIENT KILL SKIPME no NOT-NAME admin NOT-FLAGS O", ":1");
    assert!(clients[2].is_closed_within(PATIENCE));
    admin.expect("PING", "+PONG");
}

/// The memory that CLIENT LIST shows for a client.
fn memory(admin: &mut Client, name: &str) -> u64 {
    let line = admin.call(&format!("CLIENT LIST NAME {name}"));
    let rest = line.split(" tot-mem=").nth(1).unwrap_or_default();
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

/// A client that has sent most of a request.
fn heavy(server: &Server, name: &str, spared: bool, bytes: usize) -> Client {
    let mut client = named(server, name);
    if spared {
        client.expect("CLIENT NO-EVICT on", "+OK");
    }
    client.send(format!("*2\r\n$3\r\nGET\r\n${}\r\n{}", bytes + 1000, "x".repeat(bytes)));
    client
}

#[test]
fn the_heaviest_clients_are_closed_above_the_limit_and_spared_ones_are_not() {
    let server = Server::start_with(&["--client-query-buffer-limit", "100000000"]);
    let (mut admin, mut light) = (server.client(), named(&server, "light"));
    let _spared = heavy(&server, "spared", true, 4_000_000);
    let (mut first, mut second) =
        (heavy(&server, "first", false, 3_000_000), heavy(&server, "second", false, 500_000));
    for (name, bytes) in [("spared", 4_000_000), ("first", 3_000_000), ("second", 500_000)] {
        eventually("the request is there", || memory(&mut admin, name) >= bytes);
    }
    let [spares, takes, less] = ["spared", "first", "second"].map(|name| memory(&mut admin, name));
    let all = spares + takes + less;
    eventually("the sum is known", || figure(&mut admin, "mem_clients_normal") >= all);
    admin.expect(&format!("CONFIG SET maxmemory-clients {}", all - takes / 2), "+OK");
    assert!(first.is_closed_within(PATIENCE));
    eventually("it is counted", || figure(&mut admin, "evicted_clients") == 1);
    assert_eq!(names(&mut admin, "NAME second"), ["second"]);
    admin.expect(&format!("CONFIG SET maxmemory-clients {}", all - takes - less / 2), "+OK");
    assert!(second.is_closed_within(PATIENCE));
    light.expect("PING", "+PONG");
    assert_eq!(names(&mut admin, "NAME spared"), ["spared"]);
    assert_eq!(figure(&mut admin, "evicted_clients"), 2);
}

#[test]
fn the_limit_may_be_a_percentage() {
    let server = Server::start();
    let mut client = server.client();
    client.expect("CONFIG SET maxmemory-clients 5%", "+OK");
    client.expect("CONFIG GET maxmemory-clients", "[\"maxmemory-clients\", \"5%\"]");
    let refused = client.call("CONFIG SET maxmemory-clients 101%");
    assert!(refused.contains("percentage argument must be less or equal to 100"), "{refused}");
    // A percentage of no limit is none.
    client.expect("PING", "+PONG");
}
