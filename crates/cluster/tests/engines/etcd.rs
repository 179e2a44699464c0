//! The engine `etcd`: promises beside the suite, with real ones: one member, three, with TLS and with users.

use crate::suite::{Engine, Watch, acquire, acquire_later, eventually, node, put, renew};
use cluster::coordinator::{Cas, Coordinator, Ended, Held, Renewed, Trouble, cas_known};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Real members in a folder of their own, which end with this.
pub struct Members {
    all: Vec<Child>,
    /// Ports of clients and of peers.
    ports: Vec<(u16, u16)>,
    dir: TempDir,
    /// Whether clients need TLS, and a certificate of their own.
    tls: bool,
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.all {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Engine for Members {
    fn spec(&self) -> String {
        let places: Vec<_> = self.ports.iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("etcd://{}", places.join(","))
    }
}

/// Free ports, all at once, so that they differ.
fn ports(n: usize) -> Vec<u16> {
    let all: Vec<_> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    all.iter().map(|listener| listener.local_addr().expect("an address").port()).collect()
}

impl Members {
    pub fn start(n: usize) -> Members {
        let mut members = Members::prepare(n, false);
        members.spawn_all();
        members.wait();
        members
    }

    fn prepare(n: usize, tls: bool) -> Members {
        let free = ports(2 * n);
        let ports = free.chunks(2).map(|two| (two[0], two[1])).collect();
        Members { all: Vec::new(), ports, dir: tempfile::tempdir().expect("a folder"), tls }
    }

    fn spawn_all(&mut self) {
        for at in 0..self.ports.len() {
            let child = self.spawn(at);
            self.all.push(child);
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    fn spawn(&self, at: usize) -> Child {
        let (client, peer) = self.ports[at];
        let named = |(at, (_, peer)): (usize, &(u16, u16))| format!("m{at}=http://127.0.0.1:{peer}");
        let all: Vec<_> = self.ports.iter().enumerate().map(named).collect();
        let scheme = if self.tls { "https" } else { "http" };
        let (client, peer) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let log = std::fs::File::create(self.dir.path().join(format!("m{at}.log"))).expect("a log");
        let mut command = Command::new("etcd");
        if self.tls {
            command.args(["--cert-file", &self.file("server.crt"), "--key-file", &self.file("server.key")]);
            command.args(["--client-cert-auth", "--trusted-ca-file", &self.file("root.crt")]);
        }
        command
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .args([
                "--name",
                &format!("m{at}"),
                "--data-dir",
                &self.dir.path().join(format!("m{at}")).to_string_lossy(),
            ])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args([
                "--initial-cluster",
                &all.join(","),
                "--initial-cluster-state",
                "new",
                "--unsafe-no-fsync",
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("etcd (Debian: etcd-server)")
    }

    /// Waits for a leader.
    fn wait(&self) {
        let at = self.open();
        eventually("etcd answers", || at.read("").is_ok());
    }

    fn signal(&self, at: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.all[at]), signal).expect("a signal");
        // Its threads stop one after another.
        let tasks = format!("/proc/{}/task", self.all[at].id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            stat.map_or(true, |stat| stat.contains(") T "))
        };
        eventually("all of it stops", || {
            signal != Signal::STOP || std::fs::read_dir(&tasks).expect("threads").all(stopped)
        });
    }

    fn kill(&mut self, at: usize) {
        let _ = self.all[at].kill();
        let _ = self.all[at].wait();
    }

    fn again(&mut self, at: usize) {
        self.all[at] = self.spawn(at);
    }

    /// A candidate that knows one member only.
    fn open_at(&self, at: usize) -> Arc<dyn Coordinator> {
        crate::children::open(&format!("etcd://127.0.0.1:{}", self.ports[at].0))
    }

    /// Posts to the gateway by a client that is not ours.
    fn post(&self, path: &str, body: &str) -> String {
        let out = Command::new("curl")
            .args(["-s", "-m", "20", "-d", body, &format!("http://127.0.0.1:{}{path}", self.ports[0].0)])
            .output()
            .expect("curl");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

crate::conformance!(Members::start(1));

/// Tests that depend on the number of members.
mod three {
    use super::Members;
    crate::conformance!(Members::start(3), one_holder, a_watch_tells_all_in_order, counters);
}

#[test]
fn a_compacted_watch_is_told_so() {
    let members = Members::start(1);
    let at = members.open();
    let first = put(&*at, "map", 0, b"1");
    let second = put(&*at, "map", first, b"2");
    let third = put(&*at, "map", second, b"3");
    let answer = members.post("/v3/kv/compaction", &format!(r#"{{"revision":"{third}"}}"#));
    assert!(answer.contains("header"), "{answer}");
    assert_eq!(Watch::start(at.clone(), "", first - 1).ended(), Ended::Compacted);
    let (after, _) = at.read("").expect("an answer");
    let watch = Watch::start(at.clone(), "", after);
    let fourth = put(&*at, "map", third, b"4");
    assert_eq!(watch.next().revision, fourth);
    watch.end();
}

#[test]
fn a_stopped_etcd_is_unknown_within_its_limit_and_known_later() {
    let members = Members::start(1);
    let at = members.open();
    let lease = acquire(&*at, "a").expect("free");
    let first = put(&*at, "map", 0, b"1");
    let watch = Watch::start(at.clone(), "", first);
    members.signal(0, Signal::STOP);
    let begun = Instant::now();
    assert!(matches!(at.cas("map", first, Some(b"2")), Cas::Unknown(_)));
    assert!(matches!(at.renew(&lease), Renewed::Unknown(_)));
    assert!(at.read("").is_err());
    assert!(matches!(
        at.acquire(&lease.shard, &node("b"), lease.ttl),
        Err(Held::Trouble(_) | Held::Unknown(_))
    ));
    // Four calls of a second each, and not of the system's minutes.
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(matches!(watch.ended(), Ended::Broken(_)));
    members.signal(0, Signal::CONT);
    let later = Instant::now() + Duration::from_secs(60);
    let Cas::Done(second) = cas_known(&*at, "map", first, Some(b"2"), later) else {
        // The first try came late and was done: then the value is there.
        assert_eq!(at.read("map").expect("an answer").1[0].value, b"2");
        return;
    };
    assert!(second > first);
}

/// A proxy that passes requests on and keeps the answers to some of them.
mod proxy {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    pub struct Proxy {
        pub port: u16,
        /// From now on what is sent to `/v3/kv/txn` arrives, and its answer does not.
        pub deaf: Arc<AtomicBool>,
        /// From now on what is sent to `/v3/kv/txn` does not arrive.
        pub cut: Arc<AtomicBool>,
    }

    impl Proxy {
        pub fn start(to: u16) -> Proxy {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let (deaf, cut) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let proxy = Proxy { port, deaf: deaf.clone(), cut: cut.clone() };
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    let server = TcpStream::connect(("127.0.0.1", to)).expect("the server");
                    let silent = Arc::new(AtomicBool::new(false));
                    let (deaf, cut) = (deaf.clone(), cut.clone());
                    let copies = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
                    let told = silent.clone();
                    std::thread::spawn(move || {
                        pass(client, server, |bytes| {
                            let txn = bytes.windows(10).any(|part| part == b"/v3/kv/txn");
                            told.store(txn && deaf.load(Ordering::SeqCst), Ordering::SeqCst);
                            !(txn && cut.load(Ordering::SeqCst))
                        })
                    });
                    std::thread::spawn(move || pass(copies.1, copies.0, |_| !silent.load(Ordering::SeqCst)));
                }
            });
            proxy
        }
    }

    fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&[u8]) -> bool) {
        let mut room = [0; 65536];
        while let Ok(n) = from.read(&mut room) {
            if n == 0 || (passes(&room[..n]) && to.write_all(&room[..n]).is_err()) {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

#[test]
fn unknown_is_asked_until_it_is_known_whichever_way_it_went() {
    let members = Members::start(1);
    let real = members.open();
    let proxy = proxy::Proxy::start(members.ports[0].0);
    let at = crate::children::open(&format!("etcd://127.0.0.1:{}", proxy.port));
    let later = || Instant::now() + Duration::from_secs(60);
    let set = |flag: &std::sync::atomic::AtomicBool, on| flag.store(on, std::sync::atomic::Ordering::SeqCst);
    let first = put(&*at, "map", 0, b"1");
    // Done, and not heard.
    set(&proxy.deaf, true);
    assert!(matches!(at.cas("map", first, Some(b"2")), Cas::Unknown(_)));
    eventually("the change", || real.read("map").expect("an answer").1[0].value == b"2");
    let second = real.read("map").expect("an answer").1[0].revision;
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| cas_known(&*at, "map", second, Some(b"3"), later()));
        eventually("the change", || real.read("map").expect("an answer").1[0].value == b"3");
        set(&proxy.deaf, false);
        asking.join().expect("no panic")
    });
    let third = real.read("map").expect("an answer").1[0].revision;
    assert_eq!(asked, Cas::Done(third));
    // Not done.
    set(&proxy.cut, true);
    let unknown = at.cas("map", third, Some(b"4"));
    assert!(matches!(unknown, Cas::Unknown(_)), "{unknown:?}");
    set(&proxy.cut, false);
    let Cas::Done(fourth) = cas_known(&*at, "map", third, Some(b"4"), later()) else { panic!("not done") };
    // A removal that is not heard.
    set(&proxy.deaf, true);
    assert!(matches!(at.cas("map", fourth, None), Cas::Unknown(_)));
    set(&proxy.deaf, false);
    eventually("the removal", || real.read("map").expect("an answer").1.is_empty());

    // A lease that is taken and not heard of is found by the next call; one that is not taken is taken by it.
    set(&proxy.deaf, true);
    let shard = crate::suite::id(crate::suite::SHARD);
    let ttl = Duration::from_secs(60);
    assert!(matches!(at.acquire(&shard, &node("a"), ttl), Err(Held::Unknown(_))));
    set(&proxy.deaf, false);
    let lease = at.acquire(&shard, &node("a"), ttl).expect("it has it");
    assert_eq!(at.renew(&lease), Renewed::Kept);
    assert_eq!(real.acquire(&shard, &node("b"), ttl), Err(Held::By(node("a"))));
    at.release(lease, None).expect("an answer");
    set(&proxy.cut, true);
    assert!(matches!(at.acquire(&shard, &node("a"), ttl), Err(Held::Unknown(_))));
    set(&proxy.cut, false);
    let lease = at.acquire(&shard, &node("a"), ttl).expect("free");
    assert_eq!(at.renew(&lease), Renewed::Kept);
}

#[test]
fn a_key_that_is_removed_by_hand_ends_the_lease() {
    let members = Members::start(1);
    let at = members.open();
    let lease = acquire(&*at, "a").expect("free");
    let key = cluster::http::base64(format!("/evenkeel/test/shard/{}", crate::suite::SHARD).as_bytes());
    let answer = members.post("/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
    assert!(answer.contains("deleted"), "{answer}");
    assert_eq!(at.renew(&lease), Renewed::Lost);
    assert!(acquire(&*members.open(), "b").expect("free").epoch > lease.epoch);
}

#[test]
fn one_member_of_three_may_die_or_stop() {
    let mut members = Members::start(3);
    let at = members.open();
    let lease = acquire(&*at, "a").expect("free");
    let mut map = put(&*at, "map", 0, b"0");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Renewals go on, by their own candidate.
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                at.renew(&lease);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        for member in 0..3 {
            members.kill(member);
            map = put(&*at, "map", map, format!("killed {member}").as_bytes());
            members.again(member);
            let one = members.open_at(member);
            eventually("it is back", || one.read("").is_ok());
        }
        for member in 0..3 {
            members.signal(member, Signal::STOP);
            map = put(&*at, "map", map, format!("stopped {member}").as_bytes());
            members.signal(member, Signal::CONT);
            let one = members.open_at(member);
            eventually("it is back", || one.read("").is_ok());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(at.read("map").expect("an answer").1[0].value, b"stopped 2");
    // A slow change of leader may have ended the lease; then it can be taken, and else not.
    match at.renew(&lease) {
        Renewed::Kept => assert_eq!(acquire(&*members.open(), "b"), Err(Held::By(node("a")))),
        _ => assert!(acquire_later(&*members.open(), "b").epoch > lease.epoch),
    }
}

#[test]
fn a_watch_does_not_hang_at_a_member_that_is_cut_off() {
    let mut members = Members::start(3);
    let one = members.open_at(0);
    let (after, _) = one.read("").expect("an answer");
    let watch = Watch::start(one, "", after);
    // Without the others the member answers, and knows nothing.
    members.kill(1);
    members.kill(2);
    assert!(matches!(watch.ended(), Ended::Broken(_)));
    let (at, begun) = (members.open(), Instant::now());
    assert!(matches!(at.cas("map", 0, Some(b"x")), Cas::Unknown(_)));
    assert!(begun.elapsed() < Duration::from_secs(60));
    members.again(1);
    members.again(2);
    eventually("a quorum", || at.read("").is_ok());
}

#[test]
fn passwords_are_sent_and_tokens_renewed() {
    let members = Members::start(1);
    for (path, body) in [
        ("/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#),
        ("/v3/auth/role/add", r#"{"name":"root"}"#),
        ("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("/v3/auth/enable", "{}"),
    ] {
        let answer = members.post(path, body);
        assert!(answer.contains("header"), "{path}: {answer}");
    }
    assert!(members.open().read("").is_err());
    let access = |password: &str| cluster::Access {
        user: "root".to_owned(),
        password: password.to_owned(),
        ..cluster::Access::default()
    };
    let wrong = cluster::open(&members.spec(), "test", &access("no")).expect("a coordinator");
    let refused = |e: Trouble| e.to_string().contains("authentication failed");
    eventually("a refusal", || wrong.read("").is_err_and(refused));
    let at = cluster::open(&members.spec(), "test", &access("secret")).expect("a coordinator");
    let lease = acquire(&*at, "a").expect("free");
    assert_eq!(at.renew(&lease), Renewed::Kept);
    let first = put(&*at, "map", 0, b"1");
    let watch = Watch::start(at.clone(), "", first);
    let second = put(&*at, "map", first, b"2");
    assert_eq!(watch.next().revision, second);
    watch.end();
    // A restart forgets all tokens.
    let mut members = members;
    members.kill(0);
    members.again(0);
    eventually("it answers", || at.read("").is_ok());
    put(&*at, "map", second, b"3");
}

/// Writes a root, and a certificate from it for each name.
fn certificates(members: &Members, names: &[&str]) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let write = |name: &str, text: String| std::fs::write(members.file(name), text).expect("a file");
    let mut root = CertificateParams::new(vec!["root".to_owned()]).expect("a name");
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    write("root.crt", root.self_signed(&key).expect("a certificate").pem());
    let issuer = Issuer::new(root, key);
    for name in names {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        write(&format!("{name}.crt"), params.signed_by(&key, &issuer).expect("a certificate").pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

#[test]
fn certificates_of_both_sides_are_checked() {
    let mut members = Members::prepare(1, true);
    certificates(&members, &["server", "client"]);
    members.spawn_all();
    let directives = |own: bool| {
        let file = |name: &str| members.file(name);
        let value = move |name: &str| match name {
            "tls-ca-cert-file" => file("root.crt"),
            "tls-client-cert-file" if own => file("client.crt"),
            "tls-client-key-file" if own => file("client.key"),
            "tls-protocols" => "TLSv1.2 TLSv1.3".to_owned(),
            _ => String::new(),
        };
        let tls = Some(tls::Client::of(value).expect("a client"));
        cluster::Access { tls, ..cluster::Access::default() }
    };
    let spec = members.spec().replace("etcd://", "etcds://");
    let open = |access: &cluster::Access| cluster::open(&spec, "test", access).expect("a coordinator");
    let at = open(&directives(true));
    eventually("an answer", || at.read("").is_ok());
    let lease = acquire(&*at, "a").expect("free");
    assert_eq!(renew(&*at, &lease), Renewed::Kept);
    let first = put(&*at, "map", 0, &[b'x'; 200 * 1024]);
    let watch = Watch::start(at.clone(), "map", first);
    let second = put(&*at, "map", first, &[b'y'; 200 * 1024]);
    assert_eq!(watch.next().revision, second);
    watch.end();
    // Without an own certificate, and without TLS.
    assert!(open(&directives(false)).read("").is_err());
    assert!(members.open().read("").is_err());
    let error = cluster::open(&spec, "test", &cluster::Access::default()).err().expect("no roots");
    assert!(error.contains("tls-ca-cert-file"), "{error}");
}
