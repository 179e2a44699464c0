//! Answers that a client's words make long: they wait for each other's slices, and nothing else waits for them.
//!
//! No time is measured. A report that is held never ends, so whatever waits for it fails its test.

use crate::held::{Hold, await_figure, eventually, figure};
use crate::support::{Client, Server, encode_line, foreign};
use crate::waits::until;

/// As many reports as held up everybody who needs a thread of its own, and more.
const MANY: usize = 70;

/// Channels with long names that nearly match [`pattern`].
const CHANNELS: usize = 40;

fn subscriber(server: &Server) -> Client {
    let mut client = server.client();
    for command in ["SUBSCRIBE", "SSUBSCRIBE"] {
        for i in 0..CHANNELS {
            let name = format!("{}{i}", "a".repeat(60_000));
            client.request(&[command.as_bytes(), name.as_bytes()]);
            client.reply();
        }
    }
    client
}

/// It takes some 10^9 comparisons with each channel.
fn pattern() -> String {
    format!("*{}b", "a".repeat(30_000))
}

fn ask(client: &mut Client, words: &[&str]) {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.request(&words);
}

/// Asks for reports of all kinds, one for each client.
fn attack(server: &Server, count: usize) -> Vec<Client> {
    let (stars, pattern) = ("*[a-z".repeat(12_000), pattern());
    let kinds: [&[&str]; 8] = [
        &["PUBSUB", "CHANNELS", &pattern],
        &["PUBSUB", "SHARDCHANNELS", &pattern],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", &stars],
        &["FUNCTION", "LIST", "LIBRARYNAME", &stars],
        &["CONFIG", "GET", &stars, &pattern, "*"],
        &["CONFIG", "GET", "*"],
        &["ACL", "LIST"],
        &["ACL", "USERS"],
    ];
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
    clients.iter_mut().zip(kinds.iter().cycle()).for_each(|(client, words)| ask(client, words));
    clients
}

/// Checks what the server does for itself and for others while reports are under way.
fn vital_work_is_done(server: &Server, http: std::net::SocketAddr) {
    let mut client = server.client();
    client.expect("SET key value", "+OK");
    client.expect("SAVE", "+OK");
    client.expect("BGSAVE", "+Background saving started");
    await_figure(&mut client, "rdb_bgsave_in_progress", |n| n == 0);
    // The figures are looked at again and again.
    let before = figure(&mut client, "used_cpu_user");
    await_figure(&mut client, "used_cpu_user", |now| now >= before);
    let mut page = Client::to(http);
    page.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(page.raw(12), b"HTTP/1.1 200");
    for line in ["EVENKEEL WAITS", "EVENKEEL PHASES", "INFO everything", "LATENCY HISTOGRAM", "COMMAND LIST"]
    {
        assert!(!client.call(line).starts_with('-'), "{line}");
    }
    // Others have reports of their own.
    assert!(client.call("CONFIG GET *").contains("\"maxmemory\""));
    assert!(client.call("ACL LIST").contains("user default"));
    client.expect("FUNCTION LIST", "[]");
    client.expect("PUBSUB CHANNELS x*", "[]");
    client.expect("COMMAND LIST FILTERBY PATTERN gete[x-x]|or-longer", "[]");
    client.expect("COMMAND LIST FILTERBY PATTERN [g][e][t][e][x]*", "[\"getex\"]");
    // So does what needs a thread.
    let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    assert_eq!(client.call_bytes(&[b"FUNCTION", b"LOAD", code.as_bytes()]), "\"lib\"");
    assert!(client.call("SCRIPT LOAD \"return 123\"").starts_with('"'));
    client.expect("FUNCTION DELETE lib", "+OK");
}

#[test]
fn vital_work_waits_for_no_report() {
    if foreign() {
        return;
    }
    let (mut server, http) = Server::start_http(&[]);
    let _subscriber = subscriber(&server);
    let mut hold = Hold::some_at(&server, "report-step", MANY);
    let attackers = attack(&server, MANY);
    hold.await_victims(MANY);
    vital_work_is_done(&server, http);
    drop(attackers);
    vital_work_is_done(&server, http);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn reports_that_would_take_minutes_end_with_their_clients() {
    if foreign() {
        return;
    }
    let (mut server, http) = Server::start_http(&[]);
    let _subscriber = subscriber(&server);
    let attackers = attack(&server, 16);
    vital_work_is_done(&server, http);
    drop(attackers);
    vital_work_is_done(&server, http);
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

/// A transaction gets such an answer after its commit, and a script while it waits on its thread.
#[test]
fn reports_within_transactions_and_scripts_hold_nobody_up() {
    if foreign() {
        return;
    }
    let (server, http) = Server::start_http(&[]);
    let _subscriber = subscriber(&server);
    let mut hold = Hold::some_at(&server, "report-step", 3);
    let (stars, pattern) = ("*[a-z".repeat(12_000), pattern());
    let mut transaction = server.client();
    transaction.expect("MULTI", "+OK");
    for words in [
        &["PUBSUB", "CHANNELS", &pattern] as &[&str],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", &stars],
        &["SET", "done", "1"],
    ] {
        ask(&mut transaction, words);
        transaction.expect_reply("+QUEUED");
    }
    transaction.send("EXEC\r\n");
    let mut scripts = [server.client(), server.client()];
    let call = "return redis.call('COMMAND', 'LIST', 'FILTERBY', 'PATTERN', ARGV[1])";
    ask(&mut scripts[0], &["EVAL", call, "0", &stars]);
    let call = "return redis.call('PUBSUB', 'CHANNELS', ARGV[1])";
    ask(&mut scripts[1], &["EVAL", call, "0", &pattern]);
    hold.await_victims(3);
    vital_work_is_done(&server, http);
    server.client().expect("GET done", "\"1\"");
}

/// The verdicts are those of a pattern that is compared at once.
#[test]
fn names_are_found_whatever_way_a_pattern_takes() {
    let server = Server::start();
    let (mut client, mut subscriber) = (server.client(), server.client());
    for name in ["news", "new", "N", "x.y"] {
        subscriber.call(&format!("SUBSCRIBE {name}"));
    }
    client.expect_unordered("PUBSUB CHANNELS", &["news", "new", "N", "x.y"]);
    client.expect_unordered("PUBSUB CHANNELS [n]ew*", &["news", "new"]);
    client.expect("PUBSUB CHANNELS n", "[]");
    client.expect("PUBSUB CHANNELS n[^a-c]w?", "[\"news\"]");
    client.expect("COMMAND LIST FILTERBY PATTERN GE[t-t][e-e][x-x]", "[\"getex\"]");
    client.expect("CONFIG GET maxmemor[y-y]", "[\"maxmemory\", \"0\"]");
    let found = client.call("CONFIG GET MaxMemory maxmemor* maxmemory-sample[s]");
    assert!(found.starts_with("[\"MaxMemory\", \"0\", \"maxmemory-"), "{found}");
    assert_eq!(found.matches("\"maxmemory-samples\"").count(), 1, "{found}");
}

fn with<'a>(words: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    words.iter().copied().chain(more.iter().map(String::as_str)).collect()
}

/// Rules by the thousand take the time of their own client.
#[test]
fn users_with_very_many_rules_are_changed_and_shown_beside_all_others() {
    if foreign() {
        return;
    }
    let (server, http) = Server::start_http(&[]);
    let mut admin = server.client();
    let keys: Vec<String> = (0..9_000).map(|i| format!("~key:{i}")).collect();
    let mut hold = Hold::first_at(&server, "report-step");
    ask(&mut admin, &with(&["ACL", "SETUSER", "many"], &keys));
    hold.await_victim();
    vital_work_is_done(&server, http);
    server.client().expect("ACL GETUSER many", "(nil)");
    hold.release();
    admin.expect_reply("+OK");
    // Selectors, in a transaction.
    let rules: String = (0..5_000).map(|i| format!("+get|w{i} ")).collect();
    let selectors: Vec<String> = (0..60).map(|i| format!("({rules}~x{i})")).collect();
    let mut hold = Hold::first_at(&server, "report-step");
    admin.expect("MULTI", "+OK");
    ask(&mut admin, &with(&["ACL", "SETUSER", "many"], &selectors));
    admin.expect_reply("+QUEUED");
    admin.send("EXEC\r\n");
    hold.await_victim();
    vital_work_is_done(&server, http);
    hold.release();
    admin.expect_reply("[+OK]");
    // It is shown, asked and changed away from the loops too.
    for line in ["ACL GETUSER many", "ACL LIST", "ACL DRYRUN many SET key:1 v", "ACL SETUSER many reset"] {
        let mut hold = Hold::first_at(&server, "report-step");
        ask(&mut admin, &line.split(' ').collect::<Vec<_>>());
        hold.await_victim();
        vital_work_is_done(&server, http);
        hold.release();
        let said = admin.reply();
        assert!(!said.starts_with('-') && said != "(nil)", "{line}: {said}");
    }
    // The client of a change that was sent whole may leave.
    ask(&mut admin, &with(&["ACL", "SETUSER", "late"], &keys));
    drop(admin);
    let denied = "\"User late has no permissions to run the 'ping' command\"";
    eventually(&mut server.client(), "ACL DRYRUN late PING", denied);
}

/// The connection of a client that left before its report goes with the report.
#[test]
fn nothing_is_left_of_clients_that_left_before_their_reports() {
    if foreign() {
        return;
    }
    let server = Server::start();
    for line in [
        "CONFIG GET *",
        "ACL LIST",
        "ACL USERS",
        "PUBSUB CHANNELS *",
        "FUNCTION LIST",
        "COMMAND LIST FILTERBY PATTERN *",
    ] {
        for _ in 0..20 {
            let mut client = server.client();
            client.send(encode_line(line).repeat(3));
        }
    }
    let mut client = server.client();
    until("all connections are closed", || client.call("INFO clients").contains("connected_clients:1\\r"));
}
