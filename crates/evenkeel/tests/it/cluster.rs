//! Nodes of a cluster, with a directory as coordinator: who answers, who leads, and what is not lost.

use crate::replicas::{info, until};
use crate::support::{Client, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A folder where nodes meet, and for how long they lead without a renewal, in milliseconds.
struct Meeting(tempfile::TempDir, &'static str);

impl Meeting {
    /// Leases are long: a busy machine ends none. They end with their processes.
    fn new() -> Meeting {
        Meeting(tempfile::tempdir().expect("a folder"), "60000")
    }

    /// Leases end while their processes are stopped.
    fn short() -> Meeting {
        Meeting(tempfile::tempdir().expect("a folder"), "3000")
    }

    fn place(&self) -> String {
        format!("file:{}", self.0.path().display())
    }

    fn node(&self) -> Server {
        self.node_with(&[])
    }

    fn node_with(&self, more: &[&str]) -> Server {
        let place = self.place();
        let args = ["--cluster-enabled", "yes", "--cluster-coordinator", &place, "--event-loops", "1"];
        let args = [&args[..], &["--cluster-lease-ttl", self.1]].concat();
        Server::start_with(&[&args[..], more].concat())
    }
}

fn id(node: &Server) -> String {
    node.client().call("CLUSTER MYID").trim_matches('"').to_owned()
}

fn port(node: &Server) -> u16 {
    node.addr.port()
}

fn meet(node: &Server, other: &Server) {
    node.client().expect(&format!("CLUSTER MEET 127.0.0.1 {}", port(other)), "+OK");
}

fn is_ok(node: &Server) -> bool {
    node.client().call("CLUSTER INFO").contains("cluster_state:ok")
}

/// A primary of all slots, and replicas that are in sync.
fn shard(meeting: &Meeting, replicas: usize) -> Vec<Server> {
    shard_of(meeting, meeting.node(), replicas)
}

fn shard_of(meeting: &Meeting, primary: Server, replicas: usize) -> Vec<Server> {
    primary.client().expect("CLUSTER ADDSLOTSRANGE 0 16383", "+OK");
    let mut nodes = vec![primary];
    for _ in 0..replicas {
        let replica = meeting.node();
        meet(&replica, &nodes[0]);
        replica.client().expect(&format!("CLUSTER REPLICATE {}", id(&nodes[0])), "+OK");
        nodes.push(replica);
    }
    let is_listed = |replica: &Server| nodes[0].client().call("CLUSTER SLOTS").contains(&id(replica));
    until("the replicas are in sync", || nodes[1..].iter().all(is_listed));
    nodes
}

fn follows(node: &Server) -> bool {
    node.client().call("INFO replication").contains("master_link_status:up")
}

/// Writes, where a lease may not be renewed in time because the machine is busy.
fn set(node: &Server, words: &str) {
    until("it writes", || node.client().call(words) == "+OK");
}

fn get(node: &Server, value: &str) {
    until("it reads", || node.client().call("GET k") == value);
}

fn leads(node: &Server) -> bool {
    // In this order: the map names a node a moment before it serves.
    node.client().call("CLUSTER NODES").contains("myself,master") && is_ok(node)
}

#[test]
fn calls_are_answered_by_the_node_that_has_their_slot() {
    let meeting = Meeting::new();
    let (one, two) = (meeting.node(), meeting.node());
    let mut client = one.client();
    assert!(client.call("CLUSTER INFO").contains("cluster_known_nodes:1"));
    client.expect("SET foo 1", "-CLUSTERDOWN Hash slot not served");
    client.expect("CLUSTER ADDSLOTSRANGE 0 8000", "+OK");
    // As in Redis, all slots must have an owner, unless the configuration says otherwise.
    client.expect("SET bar 1", "-CLUSTERDOWN The cluster is down");
    client.expect("CONFIG SET cluster-require-full-coverage no", "+OK");
    client.expect("SET bar 1", "+OK");
    client.expect("CONFIG SET cluster-require-full-coverage yes", "+OK");
    two.client().expect("CLUSTER ADDSLOTSRANGE 8001 16383", "+OK");
    until("both know all slots", || is_ok(&one) && is_ok(&two));
    client.expect("SET bar 2", "+OK");
    client.expect("SET foo 1", &format!("-MOVED 12182 127.0.0.1:{}", port(&two)));
    two.client().expect("GET bar", &format!("-MOVED 5061 127.0.0.1:{}", port(&one)));
    client.expect("MSET a 1 bar 2", "-CROSSSLOT Keys in request don't hash to the same slot");
    client.expect("MSET {bar}1 1 {bar}2 2", "+OK");
    client.expect("CLUSTER KEYSLOT bar", ":5061");
    client.expect("CLUSTER COUNTKEYSINSLOT 5061", ":3");
    client.expect_unordered("CLUSTER GETKEYSINSLOT 5061 10", &["bar", "{bar}1", "{bar}2"]);
    client.expect("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot");
    client.expect("DBSIZE", ":3");
    client.expect("ASKING", "+OK");
    client.expect("SELECT 1", "-ERR DB index is out of range");
    client.expect("REPLICAOF NO ONE", "-ERR REPLICAOF not allowed in cluster mode.");
    client.expect("SWAPDB 0 0", "-ERR SWAPDB is not allowed in cluster mode");
    client.expect("SLAVEOF NO ONE", "-ERR REPLICAOF not allowed in cluster mode.");
    let instead = "-ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.";
    client.expect("FAILOVER", instead);
    let integer = "-ERR value is not an integer or out of range";
    client.expect("CLUSTER COUNTKEYSINSLOT x", integer);
    client.expect("CLUSTER GETKEYSINSLOT x 1", integer);
    client.expect("CLUSTER GETKEYSINSLOT 1 x", integer);
    client.expect("CLUSTER GETKEYSINSLOT 1 -1", "-ERR Invalid slot or number of keys");
    client.expect("CLUSTER MEET 127.0.0.1 99999", "-ERR Invalid node address specified: 127.0.0.1:99999");
    assert_eq!(info(&mut client, "cluster", "cluster_enabled"), "1");
    assert_eq!(info(&mut client, "server", "redis_mode"), "cluster");
}

#[test]
fn transactions_and_scripts_keep_to_one_slot_and_one_node() {
    let meeting = Meeting::new();
    let (one, two) = (meeting.node(), meeting.node());
    one.client().expect("CLUSTER ADDSLOTSRANGE 0 8000", "+OK");
    two.client().expect("CLUSTER ADDSLOTSRANGE 8001 16383", "+OK");
    until("both know all slots", || is_ok(&one) && is_ok(&two));
    let mut client = one.client();
    let moved = format!("-MOVED 12182 127.0.0.1:{}", port(&two));
    // A call of another node breaks the transaction; keys of two slots are seen at EXEC.
    client.expect("MULTI", "+OK");
    client.expect("SET bar 1", "+QUEUED");
    client.expect("SET foo 1", &moved);
    client.expect("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    client.expect("MULTI", "+OK");
    client.expect("SET bar 1", "+QUEUED");
    client.expect("SET hello 1", "+QUEUED");
    client.expect("EXEC", "-CROSSSLOT Keys in request don't hash to the same slot");
    client.expect("GET bar", "(nil)");
    let several = client.call_bytes(&[b"EVAL", b"return 1", b"2", b"bar", b"hello"]);
    assert_eq!(several, "-CROSSSLOT Keys in request don't hash to the same slot");
    assert_eq!(client.call_bytes(&[b"EVAL", b"return 1", b"1", b"foo"]), moved);
    let undeclared = client.call_bytes(&[b"EVAL", b"return redis.call('GET', 'foo')", b"0"]);
    assert!(
        undeclared.contains("Script attempted to access a non local key in a cluster node"),
        "{undeclared}"
    );
    let own = client.call_bytes(&[b"EVAL", b"return redis.call('SET', KEYS[1], 'x')", b"1", b"bar"]);
    assert_eq!(own, "+OK");
    client.expect("SPUBLISH foo hi", &moved);
    // Patterns of SORT name keys, which have to be in its slot.
    client.expect("RPUSH {bar}l 2 1", ":2");
    client.expect("MSET {bar}w1 9 {bar}w2 8", "+OK");
    client.expect("SORT {bar}l BY {bar}w* GET {bar}w* GET #", r#"["8", "2", "9", "1"]"#);
    client.expect("SORT {bar}l BY nosort", r#"["2", "1"]"#);
    let denied = |option: &str| {
        format!(
            "-ERR {option} option of SORT denied in Cluster mode when keys formed by the pattern may be in different \
             slots."
        )
    };
    client.expect("SORT {bar}l BY w_*", &denied("BY"));
    client.expect("SORT_RO {bar}l LIMIT 0 1 GET {foo}w*", &denied("GET"));
    let inside =
        client.call_bytes(&[b"EVAL", b"return redis.call('SORT', KEYS[1], 'BY', 'w*')", b"1", b"{bar}l"]);
    assert!(inside.contains("BY option of SORT denied in Cluster mode"), "{inside}");
    client.expect("SSUBSCRIBE bar hello", "-CROSSSLOT Keys in request don't hash to the same slot");
}

#[test]
fn slots_nodes_and_shards_are_told_as_redis_tells_them() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 1);
    let (primary, replica) = (id(&nodes[0]), id(&nodes[1]));
    let (p0, p1) = (port(&nodes[0]), port(&nodes[1]));
    let mut client = nodes[0].client();
    let node = |port: u16, id: &str| format!(r#"["127.0.0.1", :{port}, "{id}", []]"#);
    client
        .expect("CLUSTER SLOTS", &format!("[[:0, :16383, {}, {}]]", node(p0, &primary), node(p1, &replica)));
    let lines = client.call("CLUSTER NODES");
    let own = format!(
        "{primary} 127.0.0.1:{p0}@{} myself,master - 0 0 1 connected 0-16383\\n",
        u32::from(p0) + 10000
    );
    let other =
        format!("{replica} 127.0.0.1:{p1}@{} slave {primary} 0 0 1 connected\\n", u32::from(p1) + 10000);
    assert_eq!(lines.trim_matches('"'), format!("{own}{other}"));
    let replicas = client.call(&format!("CLUSTER REPLICAS {primary}"));
    assert!(replicas.contains(&format!("{replica} 127.0.0.1:{p1}")), "{replicas}");
    client.expect(&format!("CLUSTER REPLICAS {replica}"), "-ERR The specified node is not a master");
    let shards = client.call("CLUSTER SHARDS");
    for part in
        [r#""slots", [:0, :16383]"#, r#""role", "replica""#, r#""health", "online""#, &primary, &replica]
    {
        assert!(shards.contains(part), "{part}: {shards}");
    }
    // Clients split each line of CLUSTER INFO at its colons.
    let info = client.call("CLUSTER INFO");
    for line in info.trim_matches('"').split("\\r\\n").filter(|line| !line.is_empty()) {
        assert_eq!(line.matches(':').count(), 1, "{line}");
    }
    assert!(info.contains("cluster_coordinator:file\\r\\n"), "{info}");
    // READONLY clients read at a replica what its shard has.
    client.expect("SET k v", "+OK");
    client.expect("WAIT 1 0", ":1");
    let mut reader = nodes[1].client();
    let moved = format!("-MOVED 7629 127.0.0.1:{p0}");
    reader.expect("GET k", &moved);
    reader.expect("READONLY", "+OK");
    reader.expect("GET k", r#""v""#);
    reader.expect("SET k w", &moved);
    reader.expect("READWRITE", "+OK");
    reader.expect("GET k", &moved);
}

#[test]
fn wrong_words_change_nothing() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 1);
    let (mut client, stranger) = (nodes[0].client(), "9".repeat(40));
    let before = client.call("CLUSTER NODES");
    client.expect("CLUSTER ADDSLOTS 16384", "-ERR Invalid or out of range slot");
    client.expect("CLUSTER ADDSLOTS 1 1", "-ERR Slot 1 specified multiple times");
    client.expect("CLUSTER ADDSLOTS 1", "-ERR Slot 1 is already busy");
    client.expect("CLUSTER ADDSLOTSRANGE 5 1", "-ERR start slot number 5 is greater than end slot number 1");
    client.expect(
        "CLUSTER ADDSLOTSRANGE 5 6 7",
        "-ERR wrong number of arguments for 'cluster|addslotsrange' command",
    );
    client.expect(&format!("CLUSTER FORGET {stranger}"), &format!("-ERR Unknown node {stranger}"));
    client.expect(
        &format!("CLUSTER FORGET {}", id(&nodes[0])),
        "-ERR I tried hard but I can't forget myself...",
    );
    client.expect(&format!("CLUSTER REPLICATE {stranger}"), &format!("-ERR Unknown node {stranger}"));
    client.expect(&format!("CLUSTER REPLICATE {}", id(&nodes[0])), "-ERR Can't replicate myself");
    client.expect("CLUSTER FAILOVER", "-ERR You should send CLUSTER FAILOVER to a replica");
    client.expect("CLUSTER MEET 127.0.0.1 x", "-ERR Invalid base port specified: x");
    client.expect("SET k v", "+OK");
    client.expect("CLUSTER RESET", "-ERR CLUSTER RESET can't be called with master nodes containing keys");
    client.expect("CLUSTER FLUSHSLOTS", "-ERR DB must be empty to perform CLUSTER FLUSHSLOTS.");
    let mut replica = nodes[1].client();
    replica.expect(&format!("CLUSTER FORGET {}", id(&nodes[0])), "-ERR Can't forget my master!");
    assert!(replica.call("CLUSTER FAILOVER FORCE").contains("holds its lease"));
    assert_eq!(client.call("CLUSTER NODES"), before);
}

#[test]
fn a_replica_leads_when_its_primary_is_killed() {
    let meeting = Meeting::new();
    let mut nodes = shard(&meeting, 2);
    let mut client = nodes[0].client();
    for n in 0..200 {
        client.expect(&format!("SET key:{n} {n}"), "+OK");
    }
    client.expect("WAIT 2 0", ":2");
    let primary = nodes.remove(0);
    let (old, old_port) = (id(&primary), port(&primary));
    primary.signal("KILL");
    until("one of them leads", || nodes.iter().any(leads));
    let (new, other) = if leads(&nodes[0]) { (&nodes[0], &nodes[1]) } else { (&nodes[1], &nodes[0]) };
    let mut client = new.client();
    client.expect("DBSIZE", ":200");
    set(new, "SET key:0 after");
    let lines = client.call("CLUSTER NODES");
    assert!(
        lines.contains(&format!("{old} 127.0.0.1:{old_port}@")) && lines.contains("slave,fail"),
        "{lines}"
    );
    // It is no longer among those that clients are sent to.
    assert!(!client.call("CLUSTER SLOTS").contains(&old));
    until("the other one follows", || new.client().call("CLUSTER SLOTS").contains(&id(other)));
    client.expect("SET key:1 both", "+OK");
    client.expect("WAIT 1 0", ":1");
}

/// Whether all threads of a process are stopped: a signal takes a moment to reach those that run.
fn are_stopped(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// It was stopped between a call and its reply, for longer than its lease.
#[test]
fn a_process_that_was_stopped_acknowledges_nothing() {
    let meeting = Meeting::short();
    let nodes = shard(&meeting, 1);
    let mut clients: Vec<Client> = (0..8).map(|_| nodes[0].client()).collect();
    clients[0].expect("SET k before", "+OK");
    clients[0].expect("WAIT 1 0", ":1");
    nodes[0].signal("STOP");
    until("all its threads stand", || are_stopped(nodes[0].pid()));
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(format!("SET k stale-{n}\r\nGET k\r\n"));
    }
    until("the replica leads", || leads(&nodes[1]));
    set(&nodes[1], "SET k after");
    nodes[0].signal("CONT");
    for client in &mut clients {
        let reply = client.reply();
        let refused = ["(closed)", "-CLUSTERDOWN", "-MOVED"].iter().any(|text| reply.starts_with(text));
        assert!(refused, "{reply}");
    }
    until("the old one follows", || follows(&nodes[0]));
    get(&nodes[1], r#""after""#);
}

/// The reply was made before the fence, and most of it is still here behind it. (Over io_uring the kernel would
/// have all of it, which is as good as sent.)
#[test]
fn what_was_answered_does_not_leave_behind_the_fence() {
    let meeting = Meeting::short();
    let nodes = shard_of(&meeting, meeting.node_with(&["--io-backend", "epoll"]), 1);
    let mut client = nodes[0].client();
    let (size, value) = (64 << 20, "v".repeat(64 << 20));
    client.request(&[b"SET", b"large", value.as_bytes()]);
    client.expect_reply("+OK");
    client.expect("WAIT 1 0", ":1");
    client.send("GET large\r\n");
    // It has begun to come, and nobody reads on.
    client.skip(1000);
    nodes[0].signal("STOP");
    until("the replica leads", || leads(&nodes[1]));
    nodes[0].signal("CONT");
    until("the old one follows", || follows(&nodes[0]));
    assert!(client.drain() < size - 1000);
}

/// A client that goes where it is sent, and counts.
fn count_until(stop: &AtomicBool, ports: [u16; 2]) -> u64 {
    let to = |port: u16| Client::to(([127, 0, 0, 1], port).into());
    let (mut at, mut counted) = (0, 0);
    let mut client = to(ports[at]);
    while !stop.load(Ordering::Acquire) {
        match client.call("INCR counter") {
            reply if reply.starts_with(':') => counted += 1,
            reply if reply.starts_with("-MOVED") => {
                at = usize::from(reply.ends_with(&ports[1].to_string()));
                client = to(ports[at]);
            }
            reply => panic!("a hand-over shows no error: {reply}"),
        }
    }
    counted
}

#[test]
fn a_hand_over_loses_nothing_and_shows_no_error() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 1);
    let (stop, ports) = (Arc::new(AtomicBool::new(false)), [port(&nodes[0]), port(&nodes[1])]);
    let counters: Vec<_> = (0..3)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || count_until(&stop, ports))
        })
        .collect();
    for round in 0..4 {
        let to = &nodes[(round + 1) % 2];
        let says = |words: &str, text: &str| to.client().call(words).contains(text);
        until("it follows", || says("CLUSTER NODES", "myself,slave"));
        until("it is in sync", || says("CLUSTER SLOTS", &id(to)));
        to.client().expect("CLUSTER FAILOVER", "+OK");
        until("it leads", || leads(to));
    }
    std::thread::sleep(Duration::from_millis(50));
    stop.store(true, Ordering::Release);
    let counted: u64 = counters.into_iter().map(|counter| counter.join().expect("no error")).sum();
    assert!(counted > 0);
    nodes[0].client().expect("GET counter", &format!("\"{counted}\""));
}

#[test]
fn an_orderly_end_hands_over_first() {
    let meeting = Meeting::new();
    let mut nodes = shard(&meeting, 1);
    nodes[0].client().expect("SET k v", "+OK");
    nodes[0].signal("TERM");
    assert_eq!(nodes[0].exit_code(), Some(0));
    until("the replica leads", || leads(&nodes[1]));
    get(&nodes[1], r#""v""#);
    assert!(nodes[0].output().contains("is to lead: writes wait until it has everything"));
}

/// The replica has all data; the primary comes back with none, at once.
#[test]
fn a_primary_that_comes_back_empty_does_not_lead() {
    let meeting = Meeting::new();
    let mut nodes = shard(&meeting, 1);
    let mut client = nodes[0].client();
    client.expect("SET k v", "+OK");
    client.expect("WAIT 1 0", ":1");
    let primary = nodes.remove(0);
    let (own, at) = (id(&primary), port(&primary));
    // A node that leads nothing has no replicas: it might have less than they have.
    meeting.node().client().expect("PSYNC ? -1", "-NOMASTERLINK this node does not lead its shard");
    let dir = primary.client().call("CONFIG GET dir");
    let dir = dir.split('"').nth(3).expect("a folder").to_owned();
    let kept = tempfile::tempdir().expect("a folder");
    std::fs::copy(format!("{dir}/node.id"), kept.path().join("node.id")).expect("its id");
    primary.signal("KILL");
    let (place, kept) = (meeting.place(), kept.path().display().to_string());
    let args = ["--cluster-enabled", "yes", "--cluster-coordinator", &place, "--dir", &kept];
    until("its port is free", || std::net::TcpListener::bind(("127.0.0.1", at)).is_ok());
    let again = Server::start_on_with(at, &args).expect("it starts");
    assert_eq!(id(&again), own);
    until("the replica leads", || leads(&nodes[0]));
    until("it follows", || follows(&again));
    get(&nodes[0], r#""v""#);
    again.client().expect("DBSIZE", ":1");
}

/// A node that starts again where its data are, and at another port: the map follows, and so do others.
#[test]
fn a_node_may_come_back_at_another_address() {
    let meeting = Meeting::new();
    let mut nodes = shard(&meeting, 1);
    let kept = tempfile::tempdir().expect("a folder");
    let (place, kept) = (meeting.place(), kept.path().display().to_string());
    let args = ["--cluster-enabled", "yes", "--cluster-coordinator", &place, "--dir", &kept];
    let moving = Server::start_with(&args);
    let (own, before) = (id(&moving), port(&moving));
    meet(&moving, &nodes[0]);
    moving.client().expect(&format!("CLUSTER REPLICATE {}", id(&nodes[0])), "+OK");
    let lists = |node: &Server, port: u16| {
        node.client().call("CLUSTER SLOTS").contains(&format!("127.0.0.1\", :{port}, \"{own}\""))
    };
    until("it is in sync", || lists(&nodes[0], before));
    drop(moving);
    let again = Server::start_with(&args);
    assert_ne!(port(&again), before);
    until("the primary knows where it is", || lists(&nodes[0], port(&again)));
    // It is asked to lead there, and found there by the others.
    until("it is asked", || again.client().call("CLUSTER FAILOVER") == "+OK");
    until("it leads", || leads(&again));
    let other = nodes.remove(1);
    until("the other one follows", || follows(&other) && lists(&again, port(&again)));
    let moved = format!("-MOVED 7629 127.0.0.1:{}", port(&again));
    until("clients are sent there", || other.client().call("GET k") == moved);
}

#[test]
fn what_is_published_is_heard_at_every_node_once() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 1);
    let other = meeting.node();
    meet(&other, &nodes[0]);
    until("all know it", || {
        nodes.iter().all(|node| node.client().call("CLUSTER NODES").contains(&id(&other)))
    });
    let all = [&nodes[0], &nodes[1], &other];
    let mut listeners: Vec<Client> = all.iter().map(|node| node.client()).collect();
    for listener in &mut listeners {
        listener.expect("SUBSCRIBE news", r#"["subscribe", "news", :1]"#);
    }
    for (n, node) in all.iter().enumerate() {
        node.client().expect(&format!("PUBLISH news {n}"), ":1");
        let heard = format!(r#"["message", "news", "{n}"]"#);
        listeners.iter_mut().for_each(|listener| listener.expect_reply(&heard));
    }
    // A script's messages go the same way.
    let reply =
        other.client().call_bytes(&[b"EVAL", b"return redis.call('PUBLISH', 'news', 'script')", b"0"]);
    assert_eq!(reply, ":1");
    listeners.iter_mut().for_each(|listener| listener.expect_reply(r#"["message", "news", "script"]"#));
}

/// The lease was let go of in favour of the replica's process, which ended as well.
#[test]
fn a_shard_that_ended_as_a_whole_is_led_by_who_has_most() {
    let meeting = Meeting::new();
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    let start = |n: usize| {
        let dir = folders[n].path().to_str().expect("a name");
        meeting.node_with(&["--appendonly", "yes", "--dir", dir])
    };
    let (mut primary, mut replica) = (start(0), start(1));
    primary.client().expect("CLUSTER ADDSLOTSRANGE 0 16383", "+OK");
    meet(&replica, &primary);
    replica.client().expect(&format!("CLUSTER REPLICATE {}", id(&primary)), "+OK");
    until("it is in sync", || replica.client().call("CLUSTER SLOTS").contains(&id(&replica)));
    let mut client = primary.client();
    client.expect("SET k v", "+OK");
    client.expect("WAIT 1 0", ":1");
    replica.signal("TERM");
    primary.signal("TERM");
    assert_eq!((primary.exit_code(), replica.exit_code()), (Some(0), Some(0)));
    // The replica comes back first, and with nothing.
    std::fs::remove_dir_all(folders[1].path().join("appendonlydir")).expect("its log");
    let nodes = [start(1), start(0)];
    until("one of them leads", || nodes.iter().any(leads));
    until("the other one follows", || nodes.iter().any(follows));
    nodes.iter().filter(|node| leads(node)).for_each(|node| get(node, r#""v""#));
}

/// A word that waits for the coordinator, inside a transaction and a script: nobody else waits for it.
#[test]
fn words_that_wait_hold_nobody_up() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 0);
    let mut waits = [nodes[0].client(), nodes[0].client()];
    waits[0].expect("MULTI", "+OK");
    waits[0].expect("CLUSTER MEET 127.0.0.1 1", "+QUEUED");
    waits[0].send("EXEC\r\n");
    waits[1].request(&[b"EVAL", b"return redis.pcall('CLUSTER', 'MEET', '127.0.0.1', '1')", b"0"]);
    // No node ever registers there, so both wait for five seconds; these replies come before theirs.
    let mut client = nodes[0].client();
    for n in 0..200 {
        client.expect(&format!("SET k {n}"), "+OK");
    }
    let early = waits.iter_mut().filter_map(|client| client.reply_within(Duration::ZERO)).count();
    assert_eq!(early, 0, "a loop that waits answers nobody else first");
    for client in &mut waits {
        let reply = client.reply();
        assert!(reply.contains("has registered with"), "{reply}");
    }
}

#[test]
fn a_node_is_one_process_and_says_where_it_is() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 0);
    let (own, at) = (id(&nodes[0]), port(&nodes[0]));
    let dir = nodes[0].client().call("CONFIG GET dir");
    let dir = dir.split('"').nth(3).expect("a folder").to_owned();
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::copy(format!("{dir}/node.id"), copy.path().join("node.id")).expect("its id");
    let (place, copy) = (meeting.place(), copy.path().display().to_string());
    let (free, cluster) =
        (crate::support::free_port(), ["--cluster-enabled", "yes", "--cluster-coordinator", &place]);
    let other = free.to_string();
    let second = [&cluster[..], &["--dir", &copy, "--port", &other]].concat();
    let said = crate::support::said(&crate::support::run(&second));
    assert!(said.contains("in use by another process") && said.contains("remove node.id"), "{said}");
    // The same node comes back at another port.
    nodes[0].signal("KILL");
    let again = Server::start_on_with(free, &[&cluster[..], &["--dir", &copy]].concat()).expect("it starts");
    assert_eq!(id(&again), own);
    until("it leads", || leads(&again));
    let lines = again.client().call("CLUSTER NODES");
    assert!(lines.contains(&format!(":{free}@")) && !lines.contains(&format!(":{at}@")), "{lines}");
}

#[test]
fn nodes_are_forgotten_and_leave() {
    let meeting = Meeting::new();
    let nodes = shard(&meeting, 1);
    let replica = id(&nodes[1]);
    nodes[0].client().expect(&format!("CLUSTER FORGET {replica}"), "+OK");
    // It is said to each node in turn.
    nodes[0].client().expect(&format!("CLUSTER FORGET {replica}"), "+OK");
    assert!(!nodes[0].client().call("CLUSTER NODES").contains(&replica));
    until("it knows itself alone", || {
        nodes[1].client().call("CLUSTER INFO").contains("cluster_known_nodes:1")
    });
    nodes[1].client().expect("CLUSTER RESET HARD", "+OK");
    assert_ne!(id(&nodes[1]), replica);
    // It can come back under its new name.
    meet(&nodes[1], &nodes[0]);
    nodes[1].client().expect(&format!("CLUSTER REPLICATE {}", id(&nodes[0])), "+OK");
    until("it follows", || follows(&nodes[1]));
    until("it is in sync", || nodes[0].client().call("CLUSTER SLOTS").contains(&id(&nodes[1])));
}

#[test]
fn what_cannot_be_a_node_says_what_to_do() {
    let said = |args: &[&str]| {
        let dir = tempfile::tempdir().expect("a folder");
        let port = crate::support::free_port().to_string();
        let args = [args, &["--port", &port, "--dir", dir.path().to_str().expect("a name")]].concat();
        crate::support::said(&crate::support::run(&args))
    };
    let enabled = ["--cluster-enabled", "yes"];
    let without = said(&enabled);
    assert!(without.contains("needs cluster-coordinator: etcd://host:port, or file:/directory"), "{without}");
    let unknown = said(&[&enabled[..], &["--cluster-coordinator", "zookeeper:x"]].concat());
    assert!(unknown.contains("cluster-coordinator 'zookeeper:x'"), "{unknown}");
    let both =
        said(&[&enabled[..], &["--cluster-coordinator", "file:/tmp", "--replicaof", "127.0.0.1 1"]].concat());
    assert!(both.contains("use CLUSTER REPLICATE"), "{both}");
}

/// A real etcd with one member, in a folder of its own.
struct Etcd {
    child: std::process::Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Etcd {
    /// None, with a notice, where there is no etcd.
    fn start() -> Option<Etcd> {
        let dir = tempfile::tempdir().expect("a folder");
        let (port, peers) = (crate::support::free_port(), crate::support::free_port());
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let child = std::process::Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(dir.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let Ok(child) = child else {
            eprintln!("no etcd");
            return None;
        };
        until("etcd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Etcd { child, port, _dir: dir })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_shard_over_etcd_fails_over_and_stops_without_it() {
    let Some(etcd) = Etcd::start() else { return };
    let place = format!("etcd://127.0.0.1:{}", etcd.port);
    let args = ["--cluster-enabled", "yes", "--cluster-coordinator", &place];
    let nodes = [Server::start_with(&args), Server::start_with(&args)];
    let mut client = nodes[0].client();
    client.expect("CLUSTER ADDSLOTSRANGE 0 16383", "+OK");
    meet(&nodes[1], &nodes[0]);
    nodes[1].client().expect(&format!("CLUSTER REPLICATE {}", id(&nodes[0])), "+OK");
    until("the replica is in sync", || nodes[1].client().call("CLUSTER SLOTS").contains(&id(&nodes[1])));
    client.expect("SET k v", "+OK");
    client.expect("WAIT 1 0", ":1");
    nodes[0].signal("KILL");
    until("the replica leads", || leads(&nodes[1]));
    get(&nodes[1], r#""v""#);
    // Without its coordinator it answers for as long as its lease lasts.
    drop(etcd);
    let mut client = nodes[1].client();
    until("it stops to answer", || client.call("GET k") == "-CLUSTERDOWN The cluster is down");
    client.expect("SET k w", "-CLUSTERDOWN The cluster is down");
}

/// The commands of redis-cli, which checks what it is told.
#[test]
fn redis_cli_makes_and_checks_a_cluster() {
    let meeting = Meeting::new();
    let nodes: Vec<Server> = (0..6).map(|_| meeting.node()).collect();
    let places: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
    let cli = |words: &[&str]| {
        // It waits for ever for nodes that do not agree.
        let output = std::process::Command::new("timeout")
            .args(["120", "redis-cli", "--cluster"])
            .args(words)
            .output();
        let output = output.expect("timeout");
        if output.status.code() == Some(127) {
            return None;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = || nodes.iter().map(|node| node.client().call("CLUSTER NODES")).collect::<Vec<_>>();
        assert_ne!(output.status.code(), Some(124), "{said}: {:#?}", told());
        Some(said)
    };
    let mut words = vec!["create"];
    words.extend(places.iter().map(String::as_str));
    words.extend(["--cluster-replicas", "1", "--cluster-yes"]);
    let Some(said) = cli(&words) else {
        eprintln!("no redis-cli");
        return;
    };
    assert!(said.contains("[OK] All 16384 slots covered."), "{said}");
    until("all is well", || nodes.iter().all(is_ok));
    let listed = |node: &Server| nodes[0].client().call("CLUSTER SLOTS").contains(&id(node));
    until("the replicas are in sync", || nodes.iter().all(listed));
    let said = cli(&["check", &places[3]]).expect("redis-cli");
    assert!(
        said.contains("[OK] All nodes agree") && said.contains("[OK] All 16384 slots covered."),
        "{said}"
    );
    let said = cli(&["call", &places[0], "PING"]).expect("redis-cli");
    assert_eq!(said.matches("PONG").count(), 6, "{said}");
    // One more node, and away again.
    let more = meeting.node();
    let place = format!("127.0.0.1:{}", port(&more));
    let said = cli(&["add-node", &place, &places[0], "--cluster-slave"]).expect("redis-cli");
    assert!(said.contains("[OK] New node added correctly."), "{said}");
    until("all know it", || {
        nodes.iter().all(|node| node.client().call("CLUSTER SLOTS").contains(&id(&more)))
    });
    let said = cli(&["del-node", &places[0], &id(&more)]).expect("redis-cli");
    assert!(said.contains("CLUSTER RESET SOFT"), "{said}");
    until("it knows itself alone", || more.client().call("CLUSTER INFO").contains("cluster_known_nodes:1"));
}
