//! A mistake in the program: long work that panics fails alone, and anything else ends the process rather than leave
//! clients without an answer.

use crate::held::figure;
use crate::support::{Server, foreign};

const BROKEN: &str = "-ERR internal error, nothing was changed; the server's log says more";

#[test]
fn long_work_that_panics_fails_alone() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let (mut client, mut other) = (server.client(), server.client());
    for (key, step) in [("big", 1), ("other", 2)] {
        let words: String = (0..2000).map(|i| format!(" m{}", i * step)).collect();
        client.call(&format!("SADD {key}{words}"));
    }
    let script = "for i = 1, 3e6 do end return redis.call('SET', 'by-script', 1)";
    let lines = [
        ("job-start", "SDIFF big other".to_owned(), "[\"m"),
        ("job-end", "SDIFFSTORE result big other".to_owned(), ":1000"),
        ("script-start", format!("EVAL \"{script}\" 1 by-script"), "+OK"),
        ("script-step", format!("EVAL \"{script}\" 1 by-script"), "+OK"),
    ];
    for (n, (point, line, right)) in lines.iter().enumerate() {
        other.expect(&format!("DEBUG POINT {point} PANIC 1"), "+OK");
        client.expect(line, BROKEN);
        assert_eq!(figure(&mut other, "panics_contained"), n as u64 + 1);
        other.expect("EXISTS result by-script", ":0");
        // The next one does what it should, on the same connection and thread.
        let reply = client.call(line);
        assert!(reply.starts_with(right), "{line}: {reply}");
        other.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
        other.call("DEL result by-script");
    }
    // A transaction with long work in it is discarded whole.
    other.expect("DEBUG POINT job-start PANIC 1", "+OK");
    other.expect("DEBUG POINT script-start PANIC 1", "+OK");
    client.expect("MULTI", "+OK");
    client.expect("SET by-exec 1", "+QUEUED");
    client.expect("SDIFFSTORE result big other", "+QUEUED");
    client.expect("EXEC", BROKEN);
    other.expect("EXISTS result by-exec", ":0");
    client.expect("GET by-exec", "(nil)");
    for point in ["job-start", "script-start"] {
        other.expect(&format!("DEBUG POINT {point} OFF"), "+OK");
    }
    assert_eq!(figure(&mut other, "snapshots_open"), 0);
    assert_eq!(figure(&mut other, "scripts_running"), 0);
    server.await_words("DEBUG POINT asked for it at ScriptStep");
}

#[test]
fn a_panic_elsewhere_ends_the_process() {
    if foreign() {
        return;
    }
    let mut server = Server::start();
    let mut client = server.client();
    client.send("DEBUG PANIC\r\n");
    // By a signal: no exit code.
    assert_eq!(server.exit_code(), None);
    let said = server.output();
    assert!(said.contains("DEBUG PANIC") && said.contains("panicked: the server ends"), "{said}");
}
