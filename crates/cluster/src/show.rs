//! Replies of CLUSTER's subcommands about the map, with the shapes of Redis and Valkey.

use crate::map::{Node, Shard};
use crate::topology::Topology;
use resp::Reply;
use std::fmt::Write;

/// By what name clients are told to reach nodes (`cluster-preferred-endpoint-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Ip,
    Hostname,
    /// The one they used.
    Unknown,
}

impl Endpoint {
    /// The one of a number, as the configuration has it.
    pub fn of(number: i64) -> Endpoint {
        match number {
            0 => Endpoint::Ip,
            1 => Endpoint::Hostname,
            _ => Endpoint::Unknown,
        }
    }
}

/// A client that is told: one over TLS gets TLS ports.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub endpoint: Endpoint,
    pub tls: bool,
}

impl Reader {
    /// The port that this client can use, the other one if there is none.
    pub fn port(&self, node: &Node) -> u16 {
        match (self.tls, node.tls, node.port) {
            (true, 0, port) => port,
            (true, tls, _) => tls,
            (false, tls, 0) => tls,
            (false, _, port) => port,
        }
    }

    /// The host that this client is told; None: the one it used.
    fn host<'a>(&self, node: &'a Node) -> Option<&'a str> {
        match self.endpoint {
            Endpoint::Ip => Some(node.host.as_str()).filter(|host| !host.is_empty()),
            // As in Redis, a client that wants names is told that there is none.
            Endpoint::Hostname if node.hostname.is_empty() => Some("?"),
            Endpoint::Hostname => Some(&node.hostname),
            Endpoint::Unknown => None,
        }
    }

    /// The error that sends a client to a slot's owner.
    pub fn moved(&self, slot: u16, node: &Node) -> String {
        format!("MOVED {slot} {}:{}", self.host(node).unwrap_or_default(), self.port(node))
    }
}

/// `CLUSTER SLOTS`: for each range of slots its ends, its primary and its replicas that are in sync. O(ranges *
/// nodes)
pub fn slots(topology: &Topology, reader: Reader, out: &mut Reply) {
    let map = &topology.map;
    let mut ranges: Vec<_> = map
        .shards
        .iter()
        .flat_map(|shard| shard.slots.ranges().iter().map(move |range| (*range, shard)))
        .collect();
    ranges.sort_by_key(|(range, _)| *range);
    out.array(ranges.len());
    for ((first, last), shard) in ranges {
        let is_listed = |node: &&Node| node.id == shard.primary || shard.is_eligible(&node.id);
        let nodes: Vec<&Node> = map.nodes_of(shard).filter(is_listed).collect();
        out.array(2 + nodes.len());
        out.int(first.into());
        out.int(last.into());
        nodes.into_iter().for_each(|node| slots_node(node, reader, out));
    }
}

fn slots_node(node: &Node, reader: Reader, out: &mut Reply) {
    out.array(4);
    out.bulk_or_null(reader.host(node).map(str::as_bytes));
    out.int(reader.port(node).into());
    out.bulk(node.id.as_bytes());
    let mut facts = Vec::new();
    if reader.endpoint != Endpoint::Ip && !node.host.is_empty() {
        facts.push(("ip", &node.host));
    }
    if reader.endpoint != Endpoint::Hostname && !node.hostname.is_empty() {
        facts.push(("hostname", &node.hostname));
    }
    if !node.zone.is_empty() {
        facts.push(("availability-zone", &node.zone));
    }
    out.map(facts.len());
    for (name, value) in facts {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
}

/// `CLUSTER SHARDS`: for each shard its slots, its nodes and its id. `offset`: this node's place in its stream.
pub fn shards(topology: &Topology, reader: Reader, offset: u64, out: &mut Reply) {
    let map = &topology.map;
    out.array(map.shards.len());
    for shard in &map.shards {
        out.map(3);
        out.bulk(b"slots");
        out.array(shard.slots.ranges().len() * 2);
        for (first, last) in shard.slots.ranges() {
            out.int((*first).into());
            out.int((*last).into());
        }
        let nodes: Vec<&Node> = map.nodes_of(shard).collect();
        out.bulk(b"nodes");
        out.array(nodes.len());
        for node in nodes {
            let offset = if node.id == topology.me().id { offset } else { 0 };
            shards_node(shard, node, reader, offset, out);
        }
        out.bulk(b"id");
        out.bulk(shard.id.as_bytes());
    }
}

fn shards_node(shard: &Shard, node: &Node, reader: Reader, offset: u64, out: &mut Reply) {
    let mark = out.mark();
    let mut pairs = 0;
    let mut text = |out: &mut Reply, name: &str, value: &str| {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
        pairs += 1;
    };
    text(out, "id", &node.id);
    text(out, "ip", &node.host);
    text(out, "endpoint", reader.host(node).unwrap_or_default());
    if !node.hostname.is_empty() {
        text(out, "hostname", &node.hostname);
    }
    text(out, "role", if node.id == shard.primary { "master" } else { "replica" });
    text(out, "health", health(shard, node));
    if !node.zone.is_empty() {
        text(out, "availability-zone", &node.zone);
    }
    for (name, port) in
        [("port", node.port), ("tls-port", node.tls)].into_iter().filter(|(_, port)| *port > 0)
    {
        out.bulk(name.as_bytes());
        out.int(port.into());
        pairs += 1;
    }
    out.bulk(b"replication-offset");
    out.int(offset as i64);
    out.map_at(mark, pairs + 1);
}

fn health(shard: &Shard, node: &Node) -> &'static str {
    match () {
        () if node.is_down => "fail",
        () if node.id == shard.primary || shard.is_eligible(&node.id) => "online",
        // It copies, or has not begun to.
        () => "loading",
    }
}

/// `CLUSTER NODES`: a line for each node. O(nodes + ranges)
pub fn nodes(topology: &Topology, reader: Reader) -> String {
    let mut text = String::new();
    for shard in &topology.map.shards {
        for node in topology.map.nodes_of(shard) {
            line(&mut text, topology, (shard, node), reader);
            text.push('\n');
        }
    }
    text
}

/// `CLUSTER REPLICAS id`: the lines of a primary's replicas. Errors: the words of Redis.
pub fn replicas(topology: &Topology, id: &str, reader: Reader, out: &mut Reply) -> Result<(), String> {
    let shard = topology.map.shard_of(id).ok_or_else(|| unknown(id))?;
    if shard.primary != id {
        return Err("ERR The specified node is not a master".to_owned());
    }
    let replicas: Vec<&Node> = topology.map.nodes_of(shard).filter(|node| node.id != id).collect();
    out.array(replicas.len());
    for node in replicas {
        let mut text = String::new();
        line(&mut text, topology, (shard, node), reader);
        out.bulk(text.as_bytes());
    }
    Ok(())
}

/// The error of a node that is not in the map.
pub fn unknown(id: &str) -> String {
    format!("ERR Unknown node {id}")
}

fn line(text: &mut String, topology: &Topology, (shard, node): (&Shard, &Node), reader: Reader) {
    let is_primary = node.id == shard.primary;
    let port = reader.port(node);
    let bus = u32::from(port) + 10_000;
    let _ = write!(text, "{} {}:{port}@{bus}", node.id, node.host);
    if !node.hostname.is_empty() {
        let _ = write!(text, ",{}", node.hostname);
    }
    let myself = if node.id == topology.me().id { "myself," } else { "" };
    let role = if is_primary { "master" } else { "slave" };
    let fail = if node.is_down { ",fail" } else { "" };
    let primary = if is_primary { "-" } else { &shard.primary };
    let link = if node.is_down { "disconnected" } else { "connected" };
    let _ = write!(text, " {myself}{role}{fail} {primary} 0 0 {} {link}", shard.epoch);
    if is_primary {
        for (first, last) in shard.slots.ranges() {
            let _ = match first == last {
                true => write!(text, " {first}"),
                false => write!(text, " {first}-{last}"),
            };
        }
    }
}

/// The facts of CLUSTER INFO besides the map.
pub struct Standing<'a> {
    pub is_ok: bool,
    pub coordinator: &'a str,
    /// Milliseconds until this node stops to answer unless its lease is renewed; 0: it has none.
    pub fence_ms: u64,
}

/// `CLUSTER INFO`.
pub fn info(topology: &Topology, standing: &Standing<'_>) -> String {
    let state = if standing.is_ok { "ok" } else { "fail" };
    let map = &topology.map;
    let down = |shard: &&Shard| map.node(&shard.primary).is_some_and(|node| node.is_down);
    let failed: usize = map.shards.iter().filter(down).map(|shard| shard.slots.len()).sum();
    let lines = [
        ("cluster_state", state.to_owned()),
        ("cluster_slots_assigned", topology.covered().to_string()),
        ("cluster_slots_ok", (topology.covered() - failed).to_string()),
        ("cluster_slots_pfail", "0".to_owned()),
        ("cluster_slots_fail", failed.to_string()),
        ("cluster_known_nodes", map.nodes.len().to_string()),
        ("cluster_size", topology.size().to_string()),
        ("cluster_current_epoch", topology.epoch().to_string()),
        ("cluster_my_epoch", topology.my_shard().epoch.to_string()),
        ("cluster_stats_messages_sent", "0".to_owned()),
        ("cluster_stats_messages_received", "0".to_owned()),
        ("total_cluster_links_buffer_limit_exceeded", "0".to_owned()),
        // Clients split each line at its colons, so an address has no place here.
        ("cluster_coordinator", standing.coordinator.split(':').next().unwrap_or_default().to_owned()),
        ("cluster_map_revision", topology.revision.to_string()),
        ("cluster_fence_ms", standing.fence_ms.to_string()),
    ];
    lines.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::slots::SlotSet;

    const IP: Reader = Reader { endpoint: Endpoint::Ip, tls: false };

    fn topology() -> Topology {
        let mut map = Map::default();
        let mut shard = Shard::new("s", "p", 3);
        shard.slots = SlotSet::parse("0-5,9").unwrap();
        shard.eligible.push("r".to_owned());
        map.shards.push(shard);
        for (id, port, hostname) in [("p", 7000, "one"), ("r", 7001, ""), ("d", 7002, "")] {
            let node = Node {
                id: id.to_owned(),
                shard: "s".to_owned(),
                host: "10.0.0.1".to_owned(),
                port,
                ..Node::default()
            };
            map.nodes.push(Node { hostname: hostname.to_owned(), is_down: id == "d", ..node });
        }
        Topology::of_member(map, 4, "r").unwrap()
    }

    #[test]
    fn lines_of_nodes_are_those_of_redis() {
        assert_eq!(
            nodes(&topology(), IP),
            "p 10.0.0.1:7000@17000,one master - 0 0 3 connected 0-5 9\n\
             r 10.0.0.1:7001@17001 myself,slave p 0 0 3 connected\n\
             d 10.0.0.1:7002@17002 slave,fail p 0 0 3 disconnected\n"
        );
    }

    #[test]
    fn slots_name_those_that_are_in_sync() {
        let mut out = Reply::new(false);
        slots(&topology(), IP, &mut out);
        let node = |port: u16, id: &str, facts: &str| {
            format!("*4\r\n$8\r\n10.0.0.1\r\n:{port}\r\n$1\r\n{id}\r\n{facts}")
        };
        let nodes = node(7000, "p", "*2\r\n$8\r\nhostname\r\n$3\r\none\r\n") + &node(7001, "r", "*0\r\n");
        let expected = format!("*2\r\n*4\r\n:0\r\n:5\r\n{nodes}*4\r\n:9\r\n:9\r\n{nodes}");
        assert_eq!(String::from_utf8_lossy(out.as_bytes()), expected);
    }

    #[test]
    fn clients_are_told_what_they_can_use() {
        let node = Node { host: "10.0.0.1".to_owned(), port: 7000, tls: 7443, ..Node::default() };
        let named = Node { hostname: "one".to_owned(), ..node.clone() };
        let of = |endpoint, tls| Reader { endpoint, tls };
        assert_eq!(of(Endpoint::Ip, false).moved(5, &node), "MOVED 5 10.0.0.1:7000");
        assert_eq!(of(Endpoint::Ip, true).moved(5, &node), "MOVED 5 10.0.0.1:7443");
        assert_eq!(of(Endpoint::Hostname, false).moved(5, &named), "MOVED 5 one:7000");
        assert_eq!(of(Endpoint::Hostname, false).moved(5, &node), "MOVED 5 ?:7000");
        assert_eq!(of(Endpoint::Unknown, false).moved(5, &named), "MOVED 5 :7000");
    }
}
