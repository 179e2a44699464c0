//! The map: which shard has which slots, which node leads it, and where the nodes are. One JSON value in the
//! coordinator; its revision there is its version.
//!
//! - MA1: each slot has one shard at most, each node one shard; ids are unique, and a shard's primary is a node
//!   of it. [`Map::parse`] refuses all else, so what follows relies on it.
//! - MA2: fields that this version does not know stay as they are.

use crate::slots::{SLOTS, SlotSet};
use serde_json::{Map as Fields, Value, json};
use std::collections::HashSet;

/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u64 = 1;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    pub shards: Vec<Shard>,
    pub nodes: Vec<Node>,
    /// Fields that this version does not know (MA2).
    pub rest: Fields<String, Value>,
}

/// Nodes with the same data: a primary and its replicas.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shard {
    pub id: String,
    pub slots: SlotSet,
    /// The node that serves, at the epoch of its lease.
    pub primary: String,
    pub epoch: u64,
    /// Nodes that may take the lease: the primary, and replicas that are in sync. `node`, or `node/run` of the
    /// process that is: one that started again is not.
    pub eligible: Vec<String>,
    /// Acknowledgements of replicas that its writes ask for (`min-replicas-to-write`).
    pub acks: u64,
    /// Fields that this version does not know (MA2).
    pub rest: Fields<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    pub id: String,
    pub shard: String,
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// 0: none.
    pub tls: u16,
    /// Empty: none.
    pub hostname: String,
    /// Empty: none.
    pub zone: String,
    /// Its shard goes on without it: it lost the lease, or does not follow.
    pub is_down: bool,
    /// Fields that this version does not know (MA2).
    pub rest: Fields<String, Value>,
}

/// Whether text is an id: 40 hexadecimal digits.
pub fn is_id(text: &[u8]) -> bool {
    text.len() == 40 && text.iter().all(u8::is_ascii_hexdigit)
}

impl Map {
    /// Reads a map. Errors: a sentence about what is wrong. O(bytes)
    pub fn parse(text: &[u8]) -> Result<Map, String> {
        let value: Value = serde_json::from_slice(text).map_err(|e| format!("the map is no JSON: {e}"))?;
        let Value::Object(mut fields) = value else { return Err("the map is no object".to_owned()) };
        match fields.remove("format").and_then(|format| format.as_u64()) {
            Some(FORMAT) => {}
            Some(format) => {
                return Err(format!(
                    "the map has format {format}, and this version reads {FORMAT}: start a newer version of Evenkeel"
                ));
            }
            None => return Err("the map says no format".to_owned()),
        }
        let mut each = |name: &str| match fields.remove(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => Ok(values),
            Some(_) => Err(format!("'{name}' of the map is no array")),
        };
        let shards = each("shards")?.into_iter().map(Shard::of).collect::<Result<_, _>>()?;
        let nodes = each("nodes")?.into_iter().map(Node::of).collect::<Result<_, _>>()?;
        let map = Map { shards, nodes, rest: fields };
        map.check().map(|()| map)
    }

    /// MA1.
    fn check(&self) -> Result<(), String> {
        let mut owned = vec![false; SLOTS];
        let mut ids = HashSet::new();
        for shard in &self.shards {
            if !is_id(shard.id.as_bytes()) || !ids.insert(&shard.id) {
                return Err(format!("'{}' of the map is no id of one shard", shard.id));
            }
            for slot in shard.slots.iter() {
                if std::mem::replace(&mut owned[slot as usize], true) {
                    return Err(format!("slot {slot} of the map has two shards"));
                }
            }
        }
        for node in &self.nodes {
            if !is_id(node.id.as_bytes()) || !ids.insert(&node.id) {
                return Err(format!("'{}' of the map is no id of one node", node.id));
            }
            if self.shard(&node.shard).is_none() {
                return Err(format!("node {} of the map has a shard that does not exist", node.id));
            }
        }
        let is_of = |id: &String, shard: &Shard| self.node(id).is_some_and(|node| node.shard == shard.id);
        match self.shards.iter().find(|shard| !is_of(&shard.primary, shard)) {
            Some(shard) => Err(format!("the primary of shard {} is none of its nodes", shard.id)),
            None => Ok(()),
        }
    }

    pub fn to_json(&self) -> Vec<u8> {
        let mut fields = Fields::new();
        fields.insert("format".into(), json!(FORMAT));
        fields.insert("shards".into(), self.shards.iter().map(Shard::to_value).collect());
        fields.insert("nodes".into(), self.nodes.iter().map(Node::to_value).collect());
        fields.extend(self.rest.clone());
        Value::Object(fields).to_string().into_bytes()
    }

    pub fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub fn node_mut(&mut self, id: &str) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id == id)
    }

    pub fn shard(&self, id: &str) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    pub fn shard_mut(&mut self, id: &str) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|shard| shard.id == id)
    }

    /// The shard of a node.
    pub fn shard_of(&self, node: &str) -> Option<&Shard> {
        self.shard(&self.node(node)?.shard)
    }

    /// The shard that has a slot. O(shards)
    pub fn owner(&self, slot: u16) -> Option<&Shard> {
        self.shards.iter().find(|shard| shard.slots.contains(slot))
    }

    /// The nodes of a shard, its primary first.
    pub fn nodes_of<'a>(&'a self, shard: &'a Shard) -> impl Iterator<Item = &'a Node> {
        let replicas = self.nodes.iter().filter(|node| node.shard == shard.id && node.id != shard.primary);
        self.node(&shard.primary).into_iter().chain(replicas)
    }

    /// Ids of nodes that were left out of late.
    pub fn forgotten(&self) -> Vec<String> {
        let ids = self.rest.get("forgotten").and_then(|ids| ids.as_array());
        ids.into_iter().flatten().filter_map(|id| id.as_str()).map(str::to_owned).collect()
    }

    /// Sets a field that is no shard and no node.
    pub(crate) fn set_rest(&mut self, name: &str, value: Value) {
        let is_new = value != json!([]) || self.rest.contains_key(name);
        if is_new && self.rest.get(name) != Some(&value) {
            self.rest.insert(name.to_owned(), value);
        }
    }

    /// Removes shards without a node.
    pub fn drop_empty(&mut self) {
        let nodes = &self.nodes;
        self.shards.retain(|shard| nodes.iter().any(|node| node.shard == shard.id));
    }
}

impl Shard {
    pub fn new(id: &str, primary: &str, epoch: u64) -> Shard {
        let eligible = vec![primary.to_owned()];
        Shard { id: id.to_owned(), primary: primary.to_owned(), epoch, eligible, ..Shard::default() }
    }

    pub fn is_eligible(&self, node: &str) -> bool {
        self.eligible_nodes().any(|id| id == node)
    }

    /// A node may not take the lease from now on, whatever its process. O(entries)
    pub fn bar(&mut self, node: &str) {
        self.eligible.retain(|entry| entry.split('/').next() != Some(node));
    }

    /// The ids of nodes that may take the lease.
    pub fn eligible_nodes(&self) -> impl Iterator<Item = &str> {
        self.eligible.iter().map(|entry| entry.split('/').next().unwrap_or_default())
    }

    fn of(value: Value) -> Result<Shard, String> {
        let mut fields = object(value, "shard")?;
        let slots = text(&mut fields, "slots");
        let slots = SlotSet::parse(&slots).ok_or_else(|| format!("'{slots}' of the map are no slots"))?;
        let eligible = match fields.remove("eligible") {
            Some(Value::Array(ids)) => ids.iter().filter_map(|id| id.as_str()).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        Ok(Shard {
            id: text(&mut fields, "id"),
            slots,
            primary: text(&mut fields, "primary"),
            epoch: fields.remove("epoch").and_then(|epoch| epoch.as_u64()).unwrap_or_default(),
            eligible,
            acks: fields.remove("acks").and_then(|acks| acks.as_u64()).unwrap_or_default(),
            rest: fields,
        })
    }

    fn to_value(&self) -> Value {
        let mut value = json!({
            "id": self.id,
            "slots": self.slots.to_string(),
            "primary": self.primary,
            "epoch": self.epoch,
            "eligible": self.eligible,
            "acks": self.acks,
        });
        extend(&mut value, &self.rest);
        value
    }
}

impl Node {
    /// Reads what a node said about itself. Errors: a sentence.
    pub fn parse(text: &[u8]) -> Result<Node, String> {
        Node::of(serde_json::from_slice(text).map_err(|e| format!("a node's facts are no JSON: {e}"))?)
    }

    /// The registration of a node: its facts, and its process's name.
    pub fn registration(&self, run: &str) -> Vec<u8> {
        let mut value = self.to_value();
        extend(&mut value, &Fields::from_iter([("run".to_owned(), json!(run))]));
        value.to_string().into_bytes()
    }

    /// Whether a replica that names such an address is this node.
    pub fn answers_at(&self, host: &str, port: u16) -> bool {
        (port == self.port || port == self.tls) && (host == self.host || host == self.hostname)
    }

    /// Whether two say the same about where the node is.
    pub fn is_at(&self, other: &Node) -> bool {
        let facts =
            |node: &Node| (node.host.clone(), node.port, node.tls, node.hostname.clone(), node.zone.clone());
        facts(self) == facts(other)
    }

    /// Takes over where the node is.
    pub fn move_to(&mut self, other: &Node) {
        (self.host, self.hostname) = (other.host.clone(), other.hostname.clone());
        (self.port, self.tls, self.zone) = (other.port, other.tls, other.zone.clone());
    }

    fn of(value: Value) -> Result<Node, String> {
        let mut fields = object(value, "node")?;
        Ok(Node {
            id: text(&mut fields, "id"),
            shard: text(&mut fields, "shard"),
            host: text(&mut fields, "host"),
            port: port(&mut fields, "port"),
            tls: port(&mut fields, "tls"),
            hostname: text(&mut fields, "hostname"),
            zone: text(&mut fields, "zone"),
            is_down: fields.remove("down").and_then(|down| down.as_bool()).unwrap_or_default(),
            rest: fields,
        })
    }

    fn to_value(&self) -> Value {
        let mut value = json!({
            "id": self.id,
            "shard": self.shard,
            "host": self.host,
            "port": self.port,
            "tls": self.tls,
            "hostname": self.hostname,
            "zone": self.zone,
            "down": self.is_down,
        });
        extend(&mut value, &self.rest);
        value
    }
}

fn object(value: Value, what: &str) -> Result<Fields<String, Value>, String> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(format!("a {what} of the map is no object")),
    }
}

fn text(fields: &mut Fields<String, Value>, name: &str) -> String {
    match fields.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

fn port(fields: &mut Fields<String, Value>, name: &str) -> u16 {
    let port = fields.remove(name).and_then(|port| port.as_u64());
    port.and_then(|port| u16::try_from(port).ok()).unwrap_or_default()
}

fn extend(value: &mut Value, rest: &Fields<String, Value>) {
    if let Value::Object(fields) = value {
        fields.extend(rest.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn text(slots: &str, primary: char) -> String {
        format!(
            r#"{{"format":1,"shards":[{{"id":"{}","slots":"{slots}","primary":"{}","epoch":7,"eligible":["{}"],"new":1}},
                {{"id":"{}","slots":"100-200","primary":"{}","epoch":1}}],
                "nodes":[{{"id":"{}","shard":"{}","host":"h","port":1,"later":{{"a":[1]}}}},{{"id":"{}","shard":"{}"}}],
                "moves":[{{"id":"x"}}]}}"#,
            id('a'),
            id(primary),
            id('1'),
            id('b'),
            id('2'),
            id('1'),
            id('a'),
            id('2'),
            id('b'),
        )
    }

    #[test]
    fn a_map_is_read_and_written_with_what_is_not_known() {
        let map = Map::parse(text("0-99", '1').as_bytes()).unwrap();
        let shard = map.owner(99).unwrap();
        assert_eq!(
            (shard.id.as_str(), shard.epoch, shard.is_eligible(&id('1'))),
            (id('a').as_str(), 7, true)
        );
        assert_eq!(map.shard_of(&id('2')).unwrap().slots.len(), 101);
        assert!(map.owner(300).is_none());
        let again = Map::parse(&map.to_json()).unwrap();
        assert_eq!(again, map);
        let json = String::from_utf8(map.to_json()).unwrap();
        for kept in [r#""new":1"#, r#""later":{"a":[1]}"#, r#""moves":[{"id":"x"}]"#] {
            assert!(json.contains(kept), "{kept}: {json}");
        }
    }

    #[test]
    fn what_is_no_map_is_refused_with_a_reason() {
        let newer = text("0-99", '1').replacen("1", "2", 1);
        let cases = [
            (newer, "start a newer version"),
            (text("0-100", '1'), "slot 100 of the map has two shards"),
            (text("0-99", '2'), "is none of its nodes"),
            (text("5-1", '1'), "are no slots"),
            (text("0-99", '1').replace(&id('2'), "x"), "is no id"),
            ("[]".to_owned(), "no object"),
            ("{".to_owned(), "no JSON"),
            ("{}".to_owned(), "no format"),
        ];
        for (text, expected) in cases {
            let error = Map::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
