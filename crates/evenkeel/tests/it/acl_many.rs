//! A user with thousands of patterns: its rights are looked at in slices wherever they are looked at again.

use crate::support::{Client, Server, foreign};

/// Rules of key patterns that fit none of the keys here.
fn patterns() -> String {
    (0..4_000).map(|i| format!(" ~none{i}*")).collect()
}

fn login(server: &Server) -> Client {
    let mut client = server.client();
    client.expect("AUTH many pw", "+OK");
    client
}

fn await_blocked(admin: &mut Client) {
    while !admin.call("INFO clients").contains("blocked_clients:1") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A client that waits is served by a job, once its own loop has found it may be.
#[test]
fn a_client_with_many_patterns_is_served_and_refused_later() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect(&format!("ACL SETUSER many on >pw +@all{} ~fine", patterns()), "+OK");
    let mut user = login(&server);
    for line in ["BLPOP fine 0", "BLMPOP 0 1 fine LEFT", "BZPOPMIN fine 0"] {
        user.send(format!("{line}\r\n"));
        await_blocked(&mut admin);
        let (fill, reply) = match line.starts_with("BZ") {
            true => ("ZADD fine 1 a", r#"["fine", "a", "1"]"#),
            false => ("RPUSH fine a", r#"["fine", "a"]"#),
        };
        admin.call(fill);
        let reply = if line.starts_with("BLMPOP") { r#"["fine", ["a"]]"# } else { reply };
        user.expect_reply(reply);
        admin.expect("EXISTS fine", ":0");
    }
    // A time-out ends a wait as ever.
    user.expect("BLPOP fine 0.05", "(nil array)");
    // The right is taken away while it waits: it is told so, and the key is left alone.
    user.send("BLPOP fine 0\r\n");
    await_blocked(&mut admin);
    admin.expect("ACL SETUSER many -blpop", "+OK");
    admin.expect("RPUSH fine a", ":1");
    user.expect_reply("-NOPERM User many has no permissions to run the 'blpop' command");
    admin.expect("LLEN fine", ":1");
    let log = admin.call("ACL LOG");
    assert!(log.contains(r#""object", "blpop""#), "{log}");
}

/// EXEC looks at the rights of all queued commands again.
#[test]
fn a_transaction_of_many_patterns_is_looked_at_again() {
    if foreign() {
        return;
    }
    let server = Server::start();
    let mut admin = server.client();
    admin.expect(&format!("ACL SETUSER many on >pw +@all{} ~fine ~other", patterns()), "+OK");
    let mut user = login(&server);
    for (rule, reply) in [
        ("~more", r#"[+OK, +OK, "1"]"#),
        (
            "resetkeys ~fine",
            "-EXECABORT Transaction discarded because of: NOPERM ACLs rules changed between the moment the \
             transaction was accumulated and the EXEC call: no permission to touch the specified keys",
        ),
    ] {
        user.expect("MULTI", "+OK");
        for line in ["SET fine 1", "SET other 1", "GET fine"] {
            user.expect(line, "+QUEUED");
        }
        let rules = if rule.starts_with("reset") { format!("{rule}{}", patterns()) } else { rule.to_owned() };
        admin.expect(&format!("ACL SETUSER many {rules}"), "+OK");
        user.expect("EXEC", reply);
    }
    user.expect("GET fine", "\"1\"");
}
