//! The subcommands of CLUSTER that need no keys: what they say, and what they have changed.
//!
//! Words and errors are those of Redis 7 and Valkey 9 where these have the command. What changes the map waits
//! for the coordinator, so it is an [`Answer::Later`].

use crate::change::Change;
use crate::map::{Node, is_id};
use crate::member::Member;
use crate::show::{self, Reader, Standing, unknown};
use crate::slots::{self, SLOTS, SlotSet};
use resp::{Args, Reply};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long MEET waits for a node to register.
const REGISTERS: Duration = Duration::from_secs(5);
/// How long a change waits until this node serves what it has now.
const SERVES: Duration = Duration::from_secs(4);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// The lines of CLUSTER HELP.
pub const HELP: &[&str] = &[
    "ADDSLOTS <slot> [<slot> ...], ADDSLOTSRANGE <first> <last> [...], DELSLOTS, DELSLOTSRANGE, FLUSHSLOTS",
    "    Change the slots of this node's shard.",
    "COUNTKEYSINSLOT <slot>, GETKEYSINSLOT <slot> <count>, KEYSLOT <key>",
    "    Keys and slots.",
    "FAILOVER [FORCE|TAKEOVER]",
    "    Lead in place of this replica's primary.",
    "INFO, LINKS, MYID, MYSHARDID, NODES, REPLICAS <node>, SHARDS, SLOTS",
    "    What this node knows of the cluster.",
    "MEET <host> <port>, FORGET <node>, REPLICATE <node>, RESET [HARD|SOFT]",
    "    Which nodes are part of the cluster, and whom this one follows.",
];

/// How a subcommand is answered.
pub enum Answer {
    /// It is written.
    Now,
    /// By what this writes, on a thread that may wait.
    Later(Box<dyn FnOnce(&mut Reply) + Send>),
}

/// Facts about the server around and its client.
pub struct Ground {
    pub reader: Reader,
    /// Whether this node has no keys.
    pub is_empty: bool,
}

/// Performs a subcommand, by its lower-case name. Errors: the words of Redis; a name that is none of these.
pub fn perform(
    member: &Arc<Member>,
    name: &str,
    args: Args<'_>,
    ground: &Ground,
    out: &mut Reply,
) -> Result<Answer, String> {
    let topology = member.topology();
    let reader = ground.reader;
    match name {
        "slots" => show::slots(&topology, reader, out),
        "shards" => show::shards(&topology, reader, member.host.offset(), out),
        "nodes" => out.verbatim("txt", show::nodes(&topology, reader).as_bytes()),
        "replicas" | "slaves" => show::replicas(&topology, &id(args, 2), reader, out)?,
        "info" => {
            let coordinator = member.describe();
            let standing =
                Standing { is_ok: member.is_ok(), coordinator: &coordinator, fence_ms: member.fence_ms() };
            out.verbatim("txt", show::info(&topology, &standing).as_bytes());
        }
        "myid" => out.bulk(topology.me().id.as_bytes()),
        "myshardid" => out.bulk(topology.my_shard().id.as_bytes()),
        "keyslot" => out.int(slots::of_key(args.at(2)).into()),
        "links" => out.array(0),
        "count-failure-reports" => {
            let id = id(args, 2);
            topology.map.node(&id).ok_or_else(|| unknown(&id))?;
            out.int(0);
        }
        "saveconfig" => out.ok(),
        "set-config-epoch" => {
            let epoch = number(args.at(2)).ok_or("ERR value is not an integer or out of range")?;
            if epoch < 0 {
                return Err(format!("ERR Invalid config epoch specified: {epoch}"));
            }
            out.ok();
        }
        "bumpepoch" => out.simple(&format!("STILL {}", topology.epoch())),
        _ => return change(member, name, args, ground),
    }
    Ok(Answer::Now)
}

/// The error of a call that no node of a cluster performs, by the lower-case name of its command. O(bytes)
pub fn barred(name: &str, args: Args<'_>) -> Option<&'static str> {
    match name {
        "replicaof" | "slaveof" => Some("ERR REPLICAOF not allowed in cluster mode."),
        "failover" => Some("ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead."),
        "swapdb" => Some("ERR SWAPDB is not allowed in cluster mode"),
        "sort" | "sort_ro" => slots::leaves_by_pattern(args),
        _ => None,
    }
}

fn change(member: &Arc<Member>, name: &str, args: Args<'_>, ground: &Ground) -> Result<Answer, String> {
    let change = match name {
        "addslots" => Change::AddSlots(single_slots(args)?),
        "addslotsrange" => Change::AddSlots(ranges(args)?),
        "delslots" => Change::DelSlots(single_slots(args)?),
        "delslotsrange" => Change::DelSlots(ranges(args)?),
        "flushslots" if !ground.is_empty => {
            return Err("ERR DB must be empty to perform CLUSTER FLUSHSLOTS.".to_owned());
        }
        "flushslots" => Change::FlushSlots,
        "forget" => Change::Forget(id(args, 2)),
        "replicate" => return replicate(member, args, ground),
        "meet" => return meet(member, args),
        "reset" => return reset(member, args, ground),
        "failover" => return fail_over(member, args),
        _ => return Err("ERR this version does not have this subcommand".to_owned()),
    };
    Ok(later(member, move |member| {
        member.change(&change)?;
        if let Change::AddSlots(_) = change {
            member.await_service();
        }
        Ok(())
    }))
}

fn later(
    member: &Arc<Member>,
    run: impl FnOnce(&Arc<Member>) -> Result<(), String> + Send + 'static,
) -> Answer {
    let member = member.clone();
    Answer::Later(Box::new(move |out| match run(&member) {
        Ok(()) => out.ok(),
        Err(text) => out.error(&text),
    }))
}

impl Member {
    /// Waits until this node serves as the primary that it is by the map, for some seconds at most.
    fn await_service(&self) {
        let began = Instant::now();
        while began.elapsed() < SERVES && self.topology().is_primary() && !self.may_answer() {
            std::thread::sleep(LOOK);
        }
    }
}

fn id(args: Args<'_>, at: usize) -> String {
    String::from_utf8_lossy(args.at(at)).into_owned()
}

fn number(word: &[u8]) -> Option<i64> {
    stdx::num::parse_i64(word)
}

fn slot(word: &[u8]) -> Result<u16, String> {
    let slot = number(word).and_then(|slot| u16::try_from(slot).ok());
    slot.filter(|slot| (*slot as usize) < SLOTS).ok_or_else(|| "ERR Invalid or out of range slot".to_owned())
}

fn single_slots(args: Args<'_>) -> Result<SlotSet, String> {
    let mut known = vec![false; SLOTS];
    for at in 2..args.len() {
        let slot = slot(args.at(at))?;
        if std::mem::replace(&mut known[slot as usize], true) {
            return Err(format!("ERR Slot {slot} specified multiple times"));
        }
    }
    let mut set = SlotSet::default();
    let mut from = 0;
    for run in known.chunk_by(|a, b| a == b) {
        if run[0] {
            set.add(from as u16, (from + run.len() - 1) as u16);
        }
        from += run.len();
    }
    Ok(set)
}

fn ranges(args: Args<'_>) -> Result<SlotSet, String> {
    if !args.len().is_multiple_of(2) {
        let name = String::from_utf8_lossy(args.at(1)).to_lowercase();
        return Err(format!("ERR wrong number of arguments for 'cluster|{name}' command"));
    }
    let mut set = SlotSet::default();
    for at in (2..args.len()).step_by(2) {
        let (first, last) = (slot(args.at(at))?, slot(args.at(at + 1))?);
        if first > last {
            return Err(format!("ERR start slot number {first} is greater than end slot number {last}"));
        }
        if let Some(slot) = (first..=last).find(|slot| set.contains(*slot)) {
            return Err(format!("ERR Slot {slot} specified multiple times"));
        }
        set.add(first, last);
    }
    Ok(set)
}

/// `CLUSTER REPLICATE id`: this node follows the primary with that id from now on.
fn replicate(member: &Arc<Member>, args: Args<'_>, ground: &Ground) -> Result<Answer, String> {
    let (id, topology) = (id(args, 2), member.topology());
    topology.map.node(&id).ok_or_else(|| unknown(&id))?;
    if topology.is_primary() && id != topology.me().id && !ground.is_empty {
        return Err("ERR To set a master the node must be empty and without assigned slots.".to_owned());
    }
    Ok(later(member, move |member| member.change(&Change::Replicate(id))))
}

/// `CLUSTER MEET host port [bus port]`: this node and that one are part of one cluster.
fn meet(member: &Arc<Member>, args: Args<'_>) -> Result<Answer, String> {
    let (host, word) = (id(args, 2), id(args, 3));
    let port = number(word.as_bytes()).ok_or_else(|| format!("ERR Invalid base port specified: {word}"))?;
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| format!("ERR Invalid node address specified: {host}:{word}"))?;
    if args.len() > 4 && id(args, 4).parse::<u16>().is_err() {
        return Err(format!("ERR Invalid bus port specified: {}", id(args, 4)));
    }
    Ok(later(member, move |member| {
        let until = Instant::now() + REGISTERS;
        loop {
            if let Some(node) = member.registered(&host, port) {
                let done = member.change(&Change::Meet(node));
                member.await_service();
                return done;
            }
            if (host.as_str(), port).to_socket_addrs().is_err() {
                return Err(format!("ERR Invalid node address specified: {host}:{port}"));
            }
            if Instant::now() >= until {
                return Err(format!(
                    "ERR no node at {host}:{port} has registered with {}: start it with the same cluster-name and \
                     cluster-coordinator",
                    member.describe()
                ));
            }
            std::thread::sleep(LOOK * 10);
        }
    }))
}

impl Member {
    /// The node that says it is at an address.
    fn registered(&self, host: &str, port: u16) -> Option<Node> {
        let addresses = |host: &str| -> Vec<std::net::IpAddr> {
            (host, port).to_socket_addrs().map(|found| found.map(|at| at.ip()).collect()).unwrap_or_default()
        };
        let nodes: Vec<Node> = {
            let seen = self.seen.lock();
            let facts =
                seen.entries.range("node/".to_owned()..).take_while(|(key, _)| key.starts_with("node/"));
            facts.filter_map(|(_, entry)| Node::parse(&entry.value).ok()).collect()
        };
        let meant = addresses(host);
        nodes
            .into_iter()
            .filter(|node| is_id(node.id.as_bytes()) && (node.port == port || node.tls == port))
            .find(|node| {
                node.host == host
                    || node.hostname == host
                    || addresses(&node.host).iter().any(|address| meant.contains(address))
            })
    }
}

/// `CLUSTER RESET [HARD|SOFT]`: this node leaves; HARD: it gets another id.
fn reset(member: &Arc<Member>, args: Args<'_>, ground: &Ground) -> Result<Answer, String> {
    let hard = match args.len() {
        2 => false,
        3 if args.at(2).eq_ignore_ascii_case(b"hard") => true,
        3 if args.at(2).eq_ignore_ascii_case(b"soft") => false,
        _ => return Err("ERR syntax error".to_owned()),
    };
    if member.topology().is_primary() && !ground.is_empty {
        return Err("ERR CLUSTER RESET can't be called with master nodes containing keys".to_owned());
    }
    Ok(later(member, move |member| {
        member.change(&Change::Leave)?;
        member.host.left(hard);
        Ok(())
    }))
}

/// `CLUSTER FAILOVER [FORCE|TAKEOVER]`: this replica leads its shard. Its primary hands over when this node has
/// everything. FORCE and TAKEOVER do not ask it, and take no lease that is held.
fn fail_over(member: &Arc<Member>, args: Args<'_>) -> Result<Answer, String> {
    let forced = match args.len() {
        2 => false,
        3 if args.at(2).eq_ignore_ascii_case(b"force") || args.at(2).eq_ignore_ascii_case(b"takeover") => {
            true
        }
        _ => return Err("ERR syntax error".to_owned()),
    };
    let topology = member.topology();
    if topology.is_primary() {
        return Err("ERR You should send CLUSTER FAILOVER to a replica".to_owned());
    }
    let shard = topology.my_shard();
    let is_held = member.seen.lock().entries.contains_key(&format!("shard/{}", shard.id));
    if forced && is_held {
        return Err(
            "ERR the primary holds its lease: use CLUSTER FAILOVER, or wait until the lease ends".to_owned()
        );
    }
    if !forced && !is_held {
        return Err("ERR Master is down or failed, please use CLUSTER FAILOVER FORCE".to_owned());
    }
    if !shard.is_eligible(&topology.me().id) {
        return Err("ERR this replica is not in sync with its primary".to_owned());
    }
    let (key, me) = (format!("handover/{}", shard.id), topology.me().id.clone());
    Ok(later(member, move |member| if forced { Ok(()) } else { member.ask_to_lead(&key, &me) }))
}

impl Member {
    fn ask_to_lead(&self, key: &str, me: &str) -> Result<(), String> {
        use crate::coordinator::Cas;
        let revision = self.seen.lock().entries.get(key).map_or(0, |entry| entry.revision);
        match self.coordinator.cas(key, revision, Some(me.as_bytes())) {
            Cas::Done(_) => Ok(()),
            Cas::Conflict(_) => Err("ERR another hand-over of this shard is under way".to_owned()),
            Cas::Unknown(trouble) => Err(format!("ERR the coordinator did not answer: {trouble}")),
        }
    }
}
