//! MIGRATE over TLS, between servers of this kind and with real ones.

use crate::support::{Server, foreign, free_port};
use crate::tls::{Papers, root, sign};
use std::net::TcpListener;

const CONNECTING: &str = "-IOERR error or timeout connecting to the client";

/// A server with a port for TLS, and that port.
fn secure(papers: &Papers, name: &str, more: &[&str]) -> (Server, u16) {
    let words = papers.words_for(name);
    let start = || {
        let port = free_port();
        let port_word = port.to_string();
        let mut all = vec!["--tls-port", &port_word];
        all.extend(words.iter().map(String::as_str));
        all.extend(more);
        Some((Server::start_on_with(free_port(), &all)?, port))
    };
    (0..4).find_map(|_| start()).expect("a server")
}

/// The same of a real Redis.
fn secure_redis(papers: &Papers, more: &[&str]) -> Option<(Server, u16)> {
    let (words, port) = (papers.words(), free_port());
    let port_word = port.to_string();
    let mut all = vec!["--tls-port", &port_word];
    all.extend(words.iter().map(String::as_str));
    all.extend(more);
    Some((Server::redis(&all)?, port))
}

/// Keys move between all pairs of servers. The certificates are for no address; as in Redis, none is asked for.
#[test]
fn keys_move_over_tls() {
    if foreign() {
        return;
    }
    let papers = Papers::new();
    let on = ["--tls-cluster", "yes"];
    let mut servers = vec![secure(&papers, "server", &on), secure(&papers, "second", &on)];
    for _ in 0..2 {
        servers.extend(secure_redis(&papers, &on));
    }
    let pairs = [(0, 1), (0, 2), (2, 1), (2, 3)];
    for (from, to) in pairs.into_iter().filter(|(from, to)| from.max(to) < &servers.len()) {
        let ((from, _), (to, port)) = (&servers[from], &servers[to]);
        let (mut a, mut b) = (from.client(), to.client());
        b.expect("FLUSHALL", "+OK");
        a.expect("SET short v", "+OK");
        // More than one record, and more than the buffers of a socket.
        a.expect("SETRANGE long 5000000 y", ":5000001");
        let names: Vec<String> = (0..3000).map(|i| format!("key:{i}")).collect();
        let pairs: Vec<String> = names.iter().map(|name| format!("{name} {name}")).collect();
        a.expect(&format!("MSET {}", pairs.join(" ")), "+OK");
        let keys = names.join(" ");
        a.expect(&format!("MIGRATE 127.0.0.1 {port} \"\" 0 60000 KEYS short long {keys}"), "+OK");
        a.expect("DBSIZE", ":0");
        b.expect("MGET short key:0 key:2999", r#"["v", "key:0", "key:2999"]"#);
        b.expect("STRLEN long", ":5000001");
        b.expect("DBSIZE", ":3002");
        // The plain port does not understand it, and may wait for more of it.
        a.expect("SET short v", "+OK");
        let plain = to.addr.port();
        let refused = a.call(&format!("MIGRATE 127.0.0.1 {plain} short 0 300"));
        assert!(refused.starts_with(CONNECTING), "{refused}");
        a.expect("DEL short", ":1");
    }
}

#[test]
fn what_is_wrong_with_a_certificate_is_told() {
    if foreign() {
        return;
    }
    let (papers, others) = (Papers::new(), Papers::new());
    let (from, _) = secure(&papers, "server", &["--tls-cluster", "yes"]);
    let (target, port) =
        secure(&papers, "second", &["--requirepass", "secret", "--tls-auth-clients-user", "cn"]);
    let (stranger, strange_port) = secure(&others, "server", &[]);
    let (late, late_port) = secure(&papers, "expired", &["--tls-auth-clients", "no"]);
    let mut a = from.client();
    a.expect("SET k v", "+OK");
    let migrate = |port: u16, more: &str| format!("MIGRATE 127.0.0.1 {port} k 0 60000{more}");
    // The other root has the same name, but another key.
    a.expect(
        &migrate(strange_port, ""),
        &format!("{CONNECTING}: TLS: invalid peer certificate: BadSignature"),
    );
    let expired = a.call(&migrate(late_port, ""));
    assert!(
        expired.starts_with(&format!("{CONNECTING}: TLS: invalid peer certificate: certificate expired")),
        "{expired}"
    );
    // The certificate of another authority is not taken.
    sign(papers.dir.path(), "foreign", &root(papers.dir.path(), "other.crt"), |_| ());
    let shown = |name: &str| {
        let file = |end: &str| papers.path(&format!("{name}.{end}")).display().to_string();
        format!("CONFIG SET tls-client-cert-file {} tls-client-key-file {}", file("crt"), file("key"))
    };
    a.expect(&shown("foreign"), "+OK");
    let refused = a.call(&migrate(port, ""));
    assert!(refused.starts_with("-IOERR error or timeout "), "{refused}");
    // The certificate that is shown names the user, as for other clients.
    a.expect(&shown("alice"), "+OK");
    let noauth = "-ERR Target instance replied with error: NOAUTH Authentication required.";
    a.expect(&migrate(port, ""), noauth);
    a.expect(&migrate(port, " COPY AUTH secret"), "+OK");
    target.client().expect("AUTH secret", "+OK");
    a.expect("EXISTS k", ":1");
    let locked = papers.lock("client");
    let client = papers.path("client.crt").display().to_string();
    let locked = format!(
        "CONFIG SET tls-client-cert-file {client} tls-client-key-file {locked} tls-client-key-file-pass"
    );
    let wrong = a.call(&format!("{locked} guess"));
    assert!(wrong.contains("tls-client-key-file ") && wrong.ends_with("the password is wrong"), "{wrong}");
    a.expect(&format!("{locked} secret"), "+OK");
    a.expect(&migrate(port, " REPLACE"), "+OK");
    a.expect("EXISTS k", ":0");
    for server in [stranger, late] {
        server.client().expect("DBSIZE", ":0");
    }
}

#[test]
fn tls_for_migrate_is_set_at_run_time() {
    if foreign() {
        return;
    }
    let papers = Papers::new();
    let (target, port) = secure(&papers, "server", &["--tls-auth-clients", "no"]);
    // This one serves no TLS itself.
    let from = Server::start();
    let mut a = from.client();
    a.expect("SET k v", "+OK");
    let migrate = |port: u16| format!("MIGRATE 127.0.0.1 {port} k 0 60000 COPY REPLACE");
    a.expect(&migrate(target.addr.port()), "+OK");
    // A server that wants TLS answers nothing else, and goes.
    a.expect(&migrate(port), "-IOERR error or timeout reading to target instance");
    let refused = a.call("CONFIG SET tls-cluster yes");
    assert!(
        refused.ends_with("need tls-ca-cert-file or tls-ca-cert-dir: what their certificates must come from"),
        "{refused}"
    );
    let root = papers.path("root.crt").display().to_string();
    a.expect(&format!("CONFIG SET tls-cluster yes tls-ca-cert-file {root}"), "+OK");
    a.expect(&migrate(port), "+OK");
    // Files are read again by the signal, although nothing is served over TLS.
    std::fs::write(&root, "none").expect("written");
    from.signal("HUP");
    from.await_words("the files of TLS stay as they were: tls-ca-cert-file");
    a.expect(&migrate(port), "+OK");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_port = silent.local_addr().expect("its address").port();
    let silence = a.call(&format!("MIGRATE 127.0.0.1 {silent_port} k 0 300"));
    assert_eq!(silence, format!("{CONNECTING}: TLS: it does not answer in time"));
    // A change that turns it off needs no files.
    a.expect("CONFIG SET tls-cluster no", "+OK");
    a.expect(&migrate(target.addr.port()), "+OK");
}
