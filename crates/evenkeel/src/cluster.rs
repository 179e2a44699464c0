//! This server as a node of a cluster, wired: its id, its facts in the coordinator, its role by the map.

mod peers;

use cluster::coordinator::Coordinator;
use cluster::map::{Node, is_id};
use cluster::member::{Follower, Host, Member};
use config::Config;
use role::Address;
use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The file of this node's id, in `dir`.
const ID_FILE: &str = "node.id";

/// Makes this server a node if it is to be one, before the first client. Nothing is done before the data are
/// loaded. Errors: a sentence that says what to do.
pub fn start(server: &Arc<exec::Server>) -> Result<(), String> {
    let (config, live) = (&server.config, &server.config.live);
    if !live.cluster_enabled.get() {
        return Ok(());
    }
    if !live.replicaof.is_empty() {
        return Err("replicaof is not allowed in cluster mode: use CLUSTER REPLICATE".to_owned());
    }
    let name = live.cluster_name.string();
    let coordinator = open(config, &name)?;
    if coordinator.describe().starts_with("file:") {
        log::warn!("cluster-coordinator {}: for one machine, and for development", coordinator.describe());
    }
    let run = random_hex(8)?;
    let me = facts(config, &node_id(&live.dir.string())?)?;
    let ttl = Duration::from_millis(live.cluster_lease_ttl_ms.get() as u64);
    let host = Box::new(Around { server: Arc::downgrade(server) });
    let member = Member::new(coordinator, host, me, run, ttl);
    member.appear()?;
    configure(&member, live);
    config.observe(Box::new(Directives(member.clone())));
    if server.cluster.set(member.clone()).is_err() {
        return Err("this server is a node already".to_owned());
    }
    let peers = peers::Peers::new(member.clone(), config.clone());
    let tell = Box::new(move |channel: &[u8], message: &[u8]| peers.publish(channel, message));
    if server.pubsub.peers.set(tell).is_err() {
        return Err("this server tells other nodes already".to_owned());
    }
    let loading = server.clone();
    let begin = move || {
        while loading.durability.is_loading() {
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Err(error) = cluster::standing::start(&member) {
            log::error!("this node cannot take part in its cluster: {error}");
        }
    };
    std::thread::Builder::new().name("cluster".into()).spawn(begin).map(drop).map_err(|e| e.to_string())
}

fn open(config: &Config, name: &str) -> Result<Arc<dyn Coordinator>, String> {
    let spec = config.live.cluster_coordinator.string();
    if spec.is_empty() {
        return Err("cluster-enabled yes needs cluster-coordinator: etcd://host:port, or file:/directory for one machine"
            .to_owned());
    }
    let live = &config.live;
    let access = cluster::Access {
        user: live.cluster_coordinator_user.string(),
        password: live.cluster_coordinator_password.string(),
        tls: if spec.starts_with("etcds:") { Some(crate::secure::client(config)?) } else { None },
    };
    cluster::open(&spec, name, &access)
}

/// The id of this node, which its `dir` keeps.
fn node_id(dir: &str) -> Result<String, String> {
    let path = Path::new(dir).join(ID_FILE);
    match fs::read_to_string(&path) {
        Ok(text) if is_id(text.trim().as_bytes()) => Ok(text.trim().to_owned()),
        Ok(_) => Err(format!("{} holds no node id: remove it, and this is a new node", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => write_id(dir, &random_hex(40)?),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
    }
}

/// Writes an id behind a sync, so that a node never has half of one.
fn write_id(dir: &str, id: &str) -> Result<String, String> {
    let write = || {
        let temporary = Path::new(dir).join(format!("{ID_FILE}.new"));
        fs::write(&temporary, format!("{id}\n"))?;
        fs::File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, Path::new(dir).join(ID_FILE))?;
        fs::File::open(dir)?.sync_all()
    };
    write().map(|()| id.to_owned()).map_err(|e| format!("cannot write {ID_FILE} in {dir}: {e}"))
}

fn random_hex(digits: usize) -> Result<String, String> {
    let mut bytes = vec![0; digits / 2];
    getrandom::fill(&mut bytes).map_err(|e| format!("no random numbers: {e}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Where this node is, as others are told.
fn facts(config: &Config, id: &str) -> Result<Node, String> {
    let live = &config.live;
    let number = |name: &str| {
        let value = config.value(name).unwrap_or_default();
        String::from_utf8_lossy(&value).parse::<u16>().unwrap_or(0)
    };
    let announced = |port: i64, own: u16| u16::try_from(port).ok().filter(|port| *port > 0).unwrap_or(own);
    let bind = String::from_utf8_lossy(&config.value("bind").unwrap_or_default()).into_owned();
    let bound = bind.split_whitespace().map(|word| word.trim_start_matches('-'));
    let bound = bound.into_iter().find(|word| !matches!(*word, "*" | "::*" | "0.0.0.0" | "::"));
    let host = match live.cluster_announce_ip.string() {
        ip if !ip.is_empty() => ip,
        _ => bound.unwrap_or("127.0.0.1").to_owned(),
    };
    Ok(Node {
        id: id.to_owned(),
        shard: random_hex(40)?,
        host,
        port: announced(live.cluster_announce_port.get(), number("port")),
        tls: announced(live.cluster_announce_tls_port.get(), number("tls-port")),
        hostname: live.cluster_announce_hostname.string(),
        zone: live.availability_zone.string(),
        ..Node::default()
    })
}

fn configure(member: &Member, live: &config::Live) {
    member.reads_when_down.store(live.cluster_reads_when_down.get(), Ordering::Relaxed);
    member.needs_all_slots.store(live.cluster_needs_all_slots.get(), Ordering::Relaxed);
}

/// Follows CONFIG SET.
struct Directives(Arc<Member>);

impl config::Observer for Directives {
    fn changed(&self, _: &config::Directive, live: &config::Live) {
        configure(&self.0, live);
    }
}

/// This server, as its node sees it.
struct Around {
    server: Weak<exec::Server>,
}

impl Around {
    fn with<T>(&self, work: impl FnOnce(&exec::Server) -> T) -> Option<T> {
        self.server.upgrade().map(|server| work(&server))
    }
}

impl Host for Around {
    fn follow(&self, host: &str, port: u16) {
        let primary = Address { host: host.to_owned(), port };
        self.with(|server| {
            if let Err(why) = server.follow_primary(primary) {
                log::warn!("the primary {host}:{port} cannot be followed: {why}");
            }
        });
    }

    fn lead(&self) {
        self.with(|server| {
            if let Err(why) = server.role.wish(None, || ()) {
                log::warn!("this server cannot lead: {why}");
            }
        });
    }

    fn leads(&self) -> bool {
        self.with(|server| server.role.is_plain()).unwrap_or_default()
    }

    fn offset(&self) -> u64 {
        let offset = |server: &exec::Server| match server.role.figures() {
            Some(following) => following.offset,
            None => server.replicas.get().map(|replicas| replicas.figures().offset),
        };
        self.with(|server| offset(server).unwrap_or_default()).unwrap_or_default()
    }

    fn is_whole(&self) -> bool {
        let whole = |server: &exec::Server| {
            let copies = server.role.figures().is_some_and(|following| following.sync.is_some());
            !copies && !server.durability.is_loading() && !server.durability.is_loading_beside()
        };
        self.with(whole).unwrap_or_default()
    }

    fn followers(&self) -> Vec<Follower> {
        let followers = |server: &exec::Server| -> Vec<Follower> {
            let figures =
                server.replicas.get().map(|replicas| replicas.figures().replicas).unwrap_or_default();
            figures
                .into_iter()
                .map(|replica| Follower {
                    host: replica.address,
                    port: replica.port,
                    offset: replica.offset,
                    is_online: replica.state == "online",
                    lag_ms: replica.lag_ms.max(replica.lag_s * 1000),
                })
                .collect()
        };
        self.with(followers).unwrap_or_default()
    }

    fn acks(&self) -> u64 {
        let acks = |server: &exec::Server| server.config.live.min_replicas_to_write.get();
        self.with(acks).and_then(|acks| u64::try_from(acks).ok()).unwrap_or_default()
    }

    fn freeze(&self, limit: Duration) -> Option<u64> {
        self.with(|server| {
            if !server.freeze(limit) {
                server.thaw();
                return None;
            }
            server.replicas.get().map(|replicas| replicas.rests())
        })
        .flatten()
    }

    fn thaw(&self) {
        self.with(|server| {
            server.replicas.get().iter().for_each(|replicas| replicas.wakes());
            server.thaw();
        });
    }

    fn left(&self, hard: bool) {
        self.with(|server| {
            let Some(member) = server.cluster.get() else { return };
            let followed = server.role.follows();
            let (id, shard) = (hard.then(|| random_hex(40)).and_then(Result::ok), random_hex(40));
            if let Some(id) = &id
                && let Err(why) = write_id(&server.config.live.dir.string(), id)
            {
                return log::error!("this node keeps its id: {why}");
            }
            self.lead();
            while followed && !server.role.is_plain() {
                std::thread::sleep(Duration::from_millis(1));
            }
            member.begin_anew(id, shard.unwrap_or_default());
            if hard && let Err(why) = member.appear() {
                log::error!("this node is not known under its new id: {why}");
            }
        });
    }

    fn changed(&self) {
        self.with(|server| server.retry_held());
    }
}
