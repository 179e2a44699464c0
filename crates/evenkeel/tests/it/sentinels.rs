//! Real Sentinels supervise servers of this kind: they see a primary go, promote a replica, and take the old one back.

use crate::replicas::{follow, info, settle_at, until};
use crate::support::{Server, free_port};
use std::process::{Child, Command, Stdio};

/// A Sentinel, with a folder of its own.
struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    /// None, with a notice, where there is no redis-server.
    fn start(primary: &Server) -> Option<Sentinel> {
        let dir = tempfile::tempdir().expect("a folder");
        let (port, watched, file) = (free_port(), primary.addr.port(), dir.path().join("sentinel.conf"));
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor ours 127.0.0.1 {watched} 2\n\
             sentinel down-after-milliseconds ours 1000\nsentinel failover-timeout ours 10000\n",
            dir.path().display()
        );
        std::fs::write(&file, text).expect("its file");
        let output = || Stdio::null();
        let child = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(output())
            .stderr(output())
            .spawn();
        let Ok(child) = child else {
            eprintln!("no redis-server: no Sentinel");
            return None;
        };
        Some(Sentinel { child, port, _dir: dir })
    }

    fn ask(&self, words: &str) -> String {
        crate::support::Client::to(([127, 0, 0, 1], self.port).into()).call(words)
    }

    /// The port of the server that it takes for the primary.
    fn primary(&self) -> u16 {
        let said = self.ask("SENTINEL GET-MASTER-ADDR-BY-NAME ours");
        said.rsplit('"').nth(1).and_then(|port| port.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_listening(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn sentinels_fail_over_and_take_the_old_primary_back() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let port = |n: usize| servers[n].addr.port();
    servers[1..].iter().for_each(|replica| follow(replica, &servers[0]));
    servers[0].client().expect("SET kept 1", "+OK");
    settle_at(&servers[0], &servers[1]);
    settle_at(&servers[0], &servers[2]);
    let started: Vec<Sentinel> = (0..3).map_while(|_| Sentinel::start(&servers[0])).collect();
    if started.is_empty() {
        return;
    }
    until("the Sentinels listen", || started.iter().all(|sentinel| is_listening(sentinel.port)));
    for sentinel in &started {
        until("each knows the others and the replicas", || {
            let known = sentinel.ask("SENTINEL MASTER ours");
            known.contains("\"num-slaves\", \"2\"") && known.contains("\"num-other-sentinels\", \"2\"")
        });
    }
    // The primary does not answer, as if its machine had stopped.
    servers[0].signal("STOP");
    until("another leads", || started.iter().all(|sentinel| sentinel.primary() != port(0)));
    let leads = 1 + usize::from(started[0].primary() == port(2));
    assert_eq!(started[0].primary(), port(leads));
    let mut client = servers[leads].client();
    until("it takes writes", || client.call("SET new 1") == "+OK");
    client.expect("GET kept", "\"1\"");
    let other = &servers[3 - leads];
    until("the other follows it", || {
        info(&mut other.client(), "replication", "master_port") == port(leads).to_string()
    });
    settle_at(&servers[leads], other);
    servers[0].signal("CONT");
    until("the old one follows", || info(&mut servers[0].client(), "replication", "role") == "slave");
    settle_at(&servers[leads], &servers[0]);
    servers[0].client().expect("GET new", "\"1\"");
    // A Sentinel that has not seen it follow would take its next promotion for the old one, and have it follow.
    for sentinel in &started {
        until("each has seen the old one follow", || {
            sentinel.ask("SENTINEL REPLICAS ours").matches("\"role-reported\", \"slave\"").count() == 2
        });
    }
    // A change that an operator asks for.
    until("the change is begun", || started[0].ask("SENTINEL FAILOVER ours") == "+OK");
    until("another leads again", || started[0].primary() != port(leads));
    let now = servers.iter().find(|server| server.addr.port() == started[0].primary()).expect("one of them");
    until("it takes writes", || now.client().call("SET newer 1") == "+OK");
}
