//! Which client made which wait: a known client really delays a loop, and the server must name it.
//!
//! ```text
//! DEBUG POINT loop HOLD 1 ─▶ culprit: DEBUG STALL ─▶ loop busy ─▶ victim: GET ─▶ OFF ─▶ WAITS, WHY, SLOWLOG
//! ```
//!
//! No time is measured: a stall lasts until the watchdog has seen it.

use crate::held::Hold;
use crate::support::{Client, PATIENCE, Server, encode_line, foreign};
use std::time::{Duration, Instant};

/// A server with two loops, and a client on the first.
pub fn server() -> (Server, Client) {
    let server =
        Server::start_with(&["--event-loops", "2", "--latency-tracking", "yes", "--slowlog-max-len", "1000"]);
    // On a busy machine a new client goes to the idler loop, which here may be the one to be stalled.
    server.client().expect("DEBUG POINT accept HOLD 0", "+OK");
    let mut control = server.client();
    control.expect("DEBUG POINT accept OFF", "+OK");
    (server, control)
}

/// A client on the second loop, with a name; and its id.
pub fn astray(server: &Server, control: &mut Client, name: &str) -> (Client, u64) {
    control.expect("DEBUG POINT accept HOLD 1", "+OK");
    let mut client = server.client();
    client.expect(&format!("CLIENT SETNAME {name}"), "+OK");
    control.expect("DEBUG POINT accept OFF", "+OK");
    let id = client.call("CLIENT ID");
    (client, id.trim_start_matches(':').parse().expect("a number"))
}

fn figure(control: &mut Client, name: &str) -> u64 {
    let text = control.call("INFO evenkeel");
    let line = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[track_caller]
pub fn until(what: &str, mut fits: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !fits() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `culprit` keeps its loop busy until the watchdog has seen it; meanwhile `victim` sends a request there.
pub fn stall(control: &mut Client, culprit: &mut Client, victim: &mut Client) {
    // Long enough for the logs, which measure the command and not the turn of the loop.
    stall_for(Duration::from_millis(3), control, culprit, victim);
}

/// The same, for so long.
pub fn stall_for(time: Duration, control: &mut Client, culprit: &mut Client, victim: &mut Client) {
    control.expect("DEBUG POINT loop HOLD 1", "+OK");
    culprit.send(encode_line("DEBUG STALL"));
    until("the loop is held up", || control.call("DEBUG POINT loop") == ":1");
    victim.send(encode_line("GET key"));
    until("the watchdog sees it", || figure(control, "loop_stalls_now") > 0);
    std::thread::sleep(time);
    control.expect("DEBUG POINT loop OFF", "+OK");
    culprit.expect_reply("+OK");
    victim.expect_reply("(nil)");
}

#[test]
fn who_waited_for_a_loop_is_told_for_whom() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    control.expect("CONFIG SET slowlog-log-slower-than 1000 latency-monitor-threshold 1", "+OK");
    let (mut culprit, culprit_id) = astray(&server, &mut control, "the-culprit");
    let (mut victim, victim_id) = astray(&server, &mut control, "the-victim");
    let named = format!("\"behind\", [\"client\", :{culprit_id}, \"addr\", \"127.0.0.1:");
    let victims = format!("\"client\", :{victim_id}, \"addr\", \"127.0.0.1:");
    // On a busy machine the loop may have waited longer for the system than for the stall.
    let mut waits = String::new();
    until("the wait is noted", || {
        stall(&mut control, &mut culprit, &mut victim);
        waits = control.call("EVENKEEL WAITS");
        waits.contains(&named) && waits.contains(&victims)
    });
    assert!(waits.contains("\"the-culprit\"") && waits.contains("\"the-victim\""), "{waits}");
    assert!(waits.contains("\"command\", \"DEBUG STALL\""), "{waits}");

    let why = control.call(&format!("EVENKEEL WHY {victim_id}"));
    assert!(why.contains("\"waited-for-loop\"") && why.contains(&named), "{why}");
    let own = control.call(&format!("EVENKEEL WHY {culprit_id}"));
    // On a busy machine it may itself have waited for the system.
    let blames = |id: u64| own.contains(&format!("\"behind\", [\"client\", :{id}, "));
    assert!(own.contains("\"ran-on-loop\"") && !blames(culprit_id) && !blames(victim_id), "{own}");

    let get = control.call("SLOWLOG GET -1");
    assert!(get.contains("[\"GET\", \"key\"]") && get.contains("[\"DEBUG\", \"STALL\"]"), "{get}");
    let log = control.call("SLOWLOG WHY -1");
    assert!(log.contains(&format!("behind client {culprit_id} (127.0.0.1:")), "{log}");
    assert!(log.contains("name \\\"the-culprit\\\"), DEBUG, "), "{log}");
    assert!(log.contains("\"DEBUG STALL\", \"127.0.0.1:"), "{log}");
    assert!(control.call("LATENCY LATEST").contains("\"loop-stall\""));
    // At most one line a second is logged: another stall may have been first.
    until("the stall is logged", || {
        stall(&mut control, &mut culprit, &mut victim);
        let said = server.output();
        said.contains("stalled for") && said.contains("name \"the-culprit\"), DEBUG")
    });
    assert!(control.call("EVENKEEL PHASES").starts_with("[\"ran\", [\"count\", :"));
}

#[test]
fn who_waited_for_a_lock_is_told_whose_it_was() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    let (mut culprit, culprit_id) = astray(&server, &mut control, "the-culprit");
    control.expect("DEBUG POINT accept HOLD 0", "+OK");
    let mut victim = server.client();
    control.expect("DEBUG POINT accept OFF", "+OK");
    let victim_id = victim.call("CLIENT ID");
    let waited = format!("\"client\", {victim_id}, \"addr\", ");
    let behind = "\"for\", \"lock\", \"us\", ".to_owned();
    let named = format!("\"behind\", [\"client\", :{culprit_id}, \"addr\", \"127.0.0.1:");
    until("the wait is noted", || {
        // The holder of the lock goes on by itself, since this is also the loop that waits for it; it may do
        // so too early.
        control.expect("DEBUG POINT loop DELAY 60000", "+OK");
        culprit.send(encode_line("DEBUG STALL key"));
        victim.expect("GET key", "(nil)");
        culprit.expect_reply("+OK");
        control.expect("DEBUG POINT loop OFF", "+OK");
        let waits = control.call("EVENKEEL WAITS 100");
        let latest = &waits[waits.find("\"latest\"").expect("always there")..];
        latest
            .split("\"id\"")
            .any(|wait| [&waited, &behind, &named].iter().all(|part| wait.contains(part.as_str())))
    });
}

/// A long write with a vain attempt names the write that caused it, found at its commit or met while it is
/// placed.
#[test]
fn who_made_an_attempt_vain_is_told() {
    if foreign() {
        return;
    }
    let read = "local n = redis.call('GET', KEYS[1]) for i = 1, 3000000 do end redis.call('SET', KEYS[1], 'mine') return n";
    let many = "for i = 1, 3000 do redis.call('SET', 'k:' .. i, 'mine') end return 'done'";
    let elements: Vec<String> = (0..50_000).map(|i| i.to_string()).collect();
    let script: &[&[u8]] = &[b"EVAL", read.as_bytes(), b"1", b"hot"];
    let scattered: &[&[u8]] = &[b"EVAL", many.as_bytes(), b"0"];
    let job: &[&[u8]] = &[b"SORT", b"list", b"STORE", b"sorted"];
    // With very many keys, one of them is covered already when a commit is half placed.
    let covered: Vec<String> = (1..=60).map(|i| format!("SET k:{i} theirs")).collect();
    let cases = [
        ("script-end", script, vec!["SET hot theirs".to_owned()], "\"set\""),
        ("commit-place", scattered, covered, "\"set\""),
        ("job-end", job, vec!["RPUSH list 1".to_owned()], "\"rpush\""),
    ];
    for (point, loser_words, writes, command) in cases {
        let server = Server::start();
        let (mut control, mut loser, mut winner) = (server.client(), server.client(), server.client());
        let id = |client: &mut Client| client.call("CLIENT ID").trim_start_matches(':').to_owned();
        let (loser_id, winner_id) = (id(&mut loser), id(&mut winner));
        winner.expect("CLIENT SETNAME the-winner", "+OK");
        elements.chunks(5_000).for_each(|some| drop(loser.call(&format!("RPUSH list {}", some.join(" ")))));
        let mut hold = Hold::first_at(&server, point);
        loser.request(loser_words);
        hold.await_victim();
        writes.iter().for_each(|write| assert!(!winner.call(write).starts_with('-')));
        std::thread::sleep(Duration::from_millis(3));
        hold.release();
        assert!(!loser.reply().starts_with('-'), "{point}");
        let mut why = String::new();
        until("the lost race is noted", || {
            why = control.call(&format!("EVENKEEL WHY {loser_id}"));
            why.contains("\"for\", \"race\"")
        });
        let race = &why[why.find("\"for\", \"race\"").unwrap()..];
        let named = format!("\"behind\", [\"client\", :{winner_id}, \"addr\", \"127.0.0.1:");
        assert!(race.contains(&named) && race.contains("\"the-winner\""), "{point}: {why}");
        assert!(race.contains(&format!("\"command\", {command}")), "{point}: {why}");
        assert!(why.contains("\"lost-attempts\", :1"), "{point}: {why}");
    }
}

/// The second attempt of a long write watches its keys and ends at once. Then the client that wrote them is
/// named, and not the first writer.
#[test]
fn who_rang_the_alarm_of_an_attempt_is_told() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let [mut control, mut loser, mut first, mut second] = std::array::from_fn(|_| server.client());
    let elements: Vec<String> = (0..20_000).map(|i| i.to_string()).collect();
    elements.chunks(5_000).for_each(|some| drop(loser.call(&format!("RPUSH list {}", some.join(" ")))));
    let loser_id = loser.call("CLIENT ID");
    second.expect("CLIENT SETNAME the-second", "+OK");
    let mut end = Hold::first_at(&server, "job-end");
    loser.send("SORT list STORE sorted\r\n");
    end.await_victim();
    first.expect("RPUSH list 1", ":20001");
    let mut start = Hold::first_at(&server, "job-start");
    end.release();
    start.await_victim();
    second.expect("LPUSH list 1", ":20002");
    std::thread::sleep(Duration::from_millis(3));
    start.release();
    loser.expect_reply(":20002");
    let mut why = String::new();
    until("the lost race is noted", || {
        why = control.call(&format!("EVENKEEL WHY {}", loser_id.trim_start_matches(':')));
        why.contains("\"for\", \"race\"")
    });
    let race = &why[why.find("\"for\", \"race\"").unwrap()..];
    assert!(race.contains("\"the-second\"") && race.contains("\"command\", \"lpush\""), "{why}");
}

#[test]
fn the_watchdog_and_the_loops_agree_on_every_culprit() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    let mut clients: Vec<(Client, u64)> =
        (0..4).map(|n| astray(&server, &mut control, &format!("client-{n}"))).collect();
    let (mut victim, _) = astray(&server, &mut control, "victim");
    for round in 0..8 {
        let seen = figure(&mut control, "loop_stalls_seen");
        let (culprit, id) = &mut clients[round * 7 % 4];
        stall(&mut control, culprit, &mut victim);
        until("the stall is judged", || figure(&mut control, "loop_stalls_seen") > seen);
        let stalls = control.call("EVENKEEL STALLS 100");
        assert!(stalls.contains(&format!("\"behind\", [\"client\", :{id}, ")), "{stalls}");
    }
    let count = |control: &mut Client, name: &str| figure(control, &format!("loop_stalls_{name}"));
    let names = ["named", "crowd", "os", "unknown"];
    // On a busy machine another stall is seen while one counts.
    until("every stall that was seen is judged", || {
        let seen = count(&mut control, "seen");
        seen == names.iter().map(|name| count(&mut control, name)).sum::<u64>()
    });
    assert!(count(&mut control, "named") + count(&mut control, "os") >= 8);
    assert_eq!(count(&mut control, "differing"), 0);
    // And the next wait may come before the check.
    until("all is forgotten", || {
        control.call("EVENKEEL WAITS RESET");
        control.call("EVENKEEL WAITS") == "[\"causes\", [], \"culprits\", [], \"latest\", []]"
    });
}

#[test]
fn long_jobs_and_scripts_are_counted_with_the_time_of_their_threads() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    // Another client asks, whose requests may be slow too.
    let mut observer = server.client();
    control.expect("CONFIG SET slowlog-log-slower-than 0", "+OK");
    let members: String = (0..20_000).map(|n| format!(" {n}")).collect();
    control.expect(&format!("SADD big{members}"), ":20000");
    control.expect("CONFIG RESETSTAT", "+OK");
    control.expect("SLOWLOG RESET", "+OK");
    control.expect("SUNIONSTORE copy big", ":20000");
    control.expect("EVAL \"local n = 0 for i = 1, 3000000 do n = n + 1 end return n\" 0", ":3000000");
    for (command, name) in [("sunionstore", "SUNIONSTORE"), ("eval", "EVAL")] {
        let info = observer.call("INFO commandstats");
        assert!(info.contains(&format!("cmdstat_{command}:calls=1,")), "{info}");
        let histogram = observer.call(&format!("LATENCY HISTOGRAM {command}"));
        assert!(histogram.starts_with(&format!("[\"{command}\", [\"calls\", :1, ")), "{histogram}");
        let log = observer.call("SLOWLOG WHY -1");
        let entry = log.split(&format!("[\"{name}\"")).nth(1);
        let entry = entry.unwrap_or_else(|| panic!("no {name} in {log}"));
        assert_eq!(log.matches(&format!("[\"{name}\"")).count(), 1, "{log}");
        let entry = entry.split("127.0.0.1:").nth(1).unwrap_or_default();
        assert!(entry.contains("us on a thread of its own"), "{log}");
    }
    let id = control.call("CLIENT ID");
    let why = control.call(&format!("EVENKEEL WHY {}", &id[1..]));
    assert!(
        why.contains("\"command\", \"eval\", \"phases-us\", [") && why.contains("\"ran-on-thread\""),
        "{why}"
    );
}

#[test]
fn answers_about_waits_are_maps_and_mistakes_are_told() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    assert_eq!(control.call("EVENKEEL WHY 999999"), "-ERR No such client ID, and nothing is known of it");
    assert_eq!(control.call("EVENKEEL WHY x"), "-ERR Invalid client ID");
    assert_eq!(control.call("EVENKEEL WAITS x"), "-ERR count must be a number of 0 or more");
    assert_eq!(control.call("EVENKEEL WAITS 1 2"), "-ERR syntax error");
    assert!(control.call("EVENKEEL HELP").contains("WAITS [RESET]"));
    assert!(control.call("EVENKEEL NOSUCH").starts_with("-ERR unknown subcommand 'NOSUCH'"));
    let mut modern = server.client3();
    assert!(modern.call("EVENKEEL WAITS 3").starts_with("{\"causes\": {"));
    assert!(modern.call("EVENKEEL PHASES").contains("\"waited-for-loop\": {\"count\": :"));
}

#[test]
fn a_stall_shows_the_functions_it_was_in() {
    if foreign() {
        return;
    }
    let (server, mut control) = server();
    let (mut culprit, _) = astray(&server, &mut control, "the-culprit");
    let (mut victim, _) = astray(&server, &mut control, "the-victim");
    // A short stall may be over before the loop is asked what it does.
    until("a stall with a backtrace", || {
        stall(&mut control, &mut culprit, &mut victim);
        let stalls = control.call("EVENKEEL STALLS 100");
        stalls.contains("points::") && stalls.contains("net::event_loop::EventLoop")
    });
    until("a line of the log with a backtrace", || {
        stall(&mut control, &mut culprit, &mut victim);
        server.output().contains("; in ")
    });
}

/// Ends a program when it is dropped.
struct Program(std::process::Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_takes_the_processor_of_a_loop_is_named() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    if foreign() {
        return;
    }
    if let Err(e) = machine::sched::Witness::open() {
        return eprintln!("may not look who runs ({e}): nothing was tested");
    }
    // The server and the other program share one processor: what this thread starts stays on it.
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();
    let server = Server::start_with(&["--event-loops", "1", "--watch-neighbours", "always"]);
    let hog = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let hog = Program(hog);
    sched_setaffinity(None, &allowed).unwrap();

    let (mut client, mut control) = (server.client(), server.client());
    let batch = encode_line("INCR n").repeat(2000);
    let named = format!("\"name\", \"sh\", \"pid\", :{}, \"us\"", hog.0.id());
    until("the other program is named", || {
        client.send(&batch);
        (0..2000).for_each(|_| assert!(client.reply().starts_with(':')));
        control.call("EVENKEEL STALLS 100").contains(&named)
    });
    until("its stalls are counted", || figure(&mut control, "loop_stalls_os_named") > 0);
    // A line a second at most, and some stalls may have other causes.
    until("the log names it", || {
        client.send(&batch);
        (0..2000).for_each(|_| assert!(client.reply().starts_with(':')));
        server.output().contains(&format!("taken by sh (pid {})", hog.0.id()))
    });
    control.expect("CONFIG SET watch-neighbours no", "+OK");
    assert!(control.call("CONFIG SET watch-neighbours perhaps").starts_with("-ERR CONFIG SET failed"));
}
