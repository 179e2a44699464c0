//! Changes of the map that a command or a node asks for. Each is a function of the map alone: if another node
//! was faster, it is applied again to what that one wrote.
//!
//! - CH1: only the primary of a shard changes the shard's slots and who is eligible.

use crate::map::{Map, Node, Shard};
use crate::show::unknown;
use crate::slots::SlotSet;
use serde_json::{Value, json};

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// This node, and its shard, become part of the map.
    Join,
    /// So does another one.
    Meet(Node),
    /// Another node is left out from now on.
    Forget(String),
    /// This node follows the primary of another shard.
    Replicate(String),
    /// This node leaves.
    Leave,
    AddSlots(SlotSet),
    DelSlots(SlotSet),
    /// All slots of this node's shard.
    FlushSlots,
    /// This node is at another address.
    Move,
    /// This node serves for its shard from now on, in place of who did at an epoch. Its run.
    Lead(u64, String),
    /// Nodes of this shard that are in sync with this primary, as `node/run`, and the acknowledgements that
    /// writes ask for.
    InSync(Vec<String>, u64),
}

/// How many nodes that were forgotten are remembered: FORGET is said to each node of a cluster in turn.
const FORGOTTEN: usize = 64;

impl Change {
    /// Applies it for a node. False: the map says so already. Errors: the words of Redis where it has the same
    /// error. O(nodes + ranges)
    pub fn apply(&self, map: &mut Map, me: &Node) -> Result<bool, String> {
        let before = map.clone();
        match self {
            Change::Join => join(map, me),
            Change::Meet(node) => {
                join(map, me);
                join(map, node);
            }
            Change::Forget(id) => forget(map, me, id)?,
            Change::Replicate(id) => replicate(map, me, id)?,
            Change::Leave => leave(map, me)?,
            Change::AddSlots(slots) => add_slots(map, me, slots)?,
            Change::DelSlots(slots) => del_slots(map, me, slots)?,
            Change::FlushSlots => primary(map, me)?.slots = SlotSet::default(),
            Change::Move => move_to(map, me),
            Change::Lead(epoch, run) => lead(map, me, *epoch, run)?,
            Change::InSync(entries, acks) => in_sync(map, me, entries, *acks)?,
        }
        Ok(*map != before)
    }
}

fn join(map: &mut Map, node: &Node) {
    if map.node(&node.id).is_some() {
        return;
    }
    let forgotten: Vec<Value> =
        map.forgotten().into_iter().filter(|id| *id != node.id).map(Value::String).collect();
    map.set_rest("forgotten", json!(forgotten));
    if map.shard(&node.shard).is_none() {
        map.shards.push(Shard::new(&node.shard, &node.id, 0));
    }
    map.nodes.push(Node { is_down: false, ..node.clone() });
}

/// The shard that a node leads. Errors: it leads none.
fn primary<'a>(map: &'a mut Map, node: &Node) -> Result<&'a mut Shard, String> {
    let own = map.node(&node.id).map(|node| node.shard.clone()).unwrap_or_default();
    let shard = map.shard_mut(&own).filter(|shard| shard.primary == node.id);
    shard.ok_or_else(|| "ERR Only the primary of a shard can change its slots".to_owned())
}

fn forget(map: &mut Map, me: &Node, id: &str) -> Result<(), String> {
    if id == me.id {
        return Err("ERR I tried hard but I can't forget myself...".to_owned());
    }
    let Some(shard) = map.shard_of(id) else {
        // The same was said to another node before.
        return if map.forgotten().iter().any(|known| known == id) { Ok(()) } else { Err(unknown(id)) };
    };
    if shard.primary == id {
        if map.shard_of(&me.id).is_some_and(|own| own.id == shard.id) {
            return Err("ERR Can't forget my master!".to_owned());
        }
        if !shard.slots.is_empty() || map.nodes_of(shard).count() > 1 {
            return Err("ERR Can't forget a primary that has slots or replicas".to_owned());
        }
    }
    remove(map, id);
    Ok(())
}

fn remove(map: &mut Map, id: &str) {
    map.nodes.retain(|node| node.id != id);
    map.shards.iter_mut().for_each(|shard| shard.bar(id));
    map.drop_empty();
    let mut forgotten = map.forgotten();
    forgotten.retain(|known| known != id);
    forgotten.push(id.to_owned());
    let from = forgotten.len().saturating_sub(FORGOTTEN);
    map.set_rest("forgotten", json!(forgotten[from..]));
}

fn replicate(map: &mut Map, me: &Node, id: &str) -> Result<(), String> {
    let target = map.shard_of(id).ok_or_else(|| unknown(id))?;
    if id == me.id {
        return Err("ERR Can't replicate myself".to_owned());
    }
    if target.primary != id {
        return Err("ERR I can only replicate a master, not a replica.".to_owned());
    }
    let target = target.id.clone();
    if let Some(own) = map.shard_of(&me.id)
        && own.primary == me.id
        && (!own.slots.is_empty() || map.nodes_of(own).count() > 1)
    {
        return Err("ERR To set a master the node must be empty and without assigned slots.".to_owned());
    }
    if map.node(&me.id).is_none() {
        join(map, me);
    }
    map.shards.iter_mut().filter(|shard| shard.id != target).for_each(|shard| shard.bar(&me.id));
    map.node_mut(&me.id).into_iter().for_each(|node| node.shard.clone_from(&target));
    map.drop_empty();
    Ok(())
}

fn leave(map: &mut Map, me: &Node) -> Result<(), String> {
    let Some(own) = map.shard_of(&me.id) else { return Ok(()) };
    if own.primary == me.id && map.nodes_of(own).count() > 1 {
        return Err(
            "ERR This node leads replicas: let one of them lead first (CLUSTER FAILOVER there)".to_owned()
        );
    }
    remove(map, &me.id);
    Ok(())
}

fn add_slots(map: &mut Map, me: &Node, slots: &SlotSet) -> Result<(), String> {
    join(map, me);
    for slot in slots.iter() {
        if map.owner(slot).is_some() {
            return Err(format!("ERR Slot {slot} is already busy"));
        }
    }
    let own = primary(map, me)?;
    slots.ranges().iter().for_each(|(first, last)| own.slots.add(*first, *last));
    Ok(())
}

fn del_slots(map: &mut Map, me: &Node, slots: &SlotSet) -> Result<(), String> {
    for slot in slots.iter() {
        match map.owner(slot) {
            None => return Err(format!("ERR Slot {slot} is already unassigned")),
            Some(shard) if shard.primary != me.id => {
                return Err(format!("ERR Slot {slot} belongs to another node: say it there"));
            }
            Some(_) => {}
        }
    }
    let own = primary(map, me)?;
    slots.ranges().iter().for_each(|(first, last)| own.slots.remove(*first, *last));
    Ok(())
}

fn move_to(map: &mut Map, me: &Node) {
    map.node_mut(&me.id).into_iter().filter(|node| !node.is_at(me)).for_each(|node| node.move_to(me));
}

fn lead(map: &mut Map, me: &Node, epoch: u64, run: &str) -> Result<(), String> {
    let own =
        map.node(&me.id).map(|node| node.shard.clone()).ok_or("ERR this node is not part of the map")?;
    let shard = map.shard_mut(&own).ok_or("ERR this node has no shard")?;
    if shard.epoch != epoch {
        return Err(format!("ERR the shard is at epoch {}, not {epoch}", shard.epoch));
    }
    if !shard.is_eligible(&me.id) && shard.primary != me.id {
        return Err("ERR this node is not in sync with the shard's primary".to_owned());
    }
    let old = std::mem::replace(&mut shard.primary, me.id.clone());
    shard.epoch = epoch + 1;
    // Replicas are in sync with this node when they have followed it.
    shard.eligible = vec![format!("{}/{run}", me.id)];
    map.node_mut(&old).into_iter().for_each(|node| node.is_down = true);
    map.node_mut(&me.id).into_iter().for_each(|node| node.is_down = false);
    Ok(())
}

fn in_sync(map: &mut Map, me: &Node, entries: &[String], acks: u64) -> Result<(), String> {
    let own = primary(map, me)?.id.clone();
    let id_of = |entry: &str| entry.split('/').next().unwrap_or_default().to_owned();
    let is_of = |map: &Map, id: &str| map.node(id).is_some_and(|node| node.shard == own);
    let eligible: Vec<String> = entries.iter().filter(|entry| is_of(map, &id_of(entry))).cloned().collect();
    for node in map.nodes.iter_mut().filter(|node| node.shard == own && node.id != me.id) {
        let known = eligible.iter().any(|entry| id_of(entry) == node.id);
        let was = map.shards.iter().any(|shard| shard.id == own && shard.is_eligible(&node.id));
        // A node that never was in sync is not down: it copies.
        node.is_down = !known && (was || node.is_down);
    }
    let shard = primary(map, me)?;
    (shard.eligible, shard.acks) = (eligible, acks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    fn node(digit: char, shard: char) -> Node {
        Node { id: id(digit), shard: id(shard), host: "h".to_owned(), port: 1, ..Node::default() }
    }

    fn run(digit: char) -> String {
        format!("{}/r", id(digit))
    }

    fn in_sync(digits: &[char]) -> Change {
        Change::InSync(digits.iter().map(|digit| run(*digit)).collect(), 0)
    }

    fn lead(epoch: u64) -> Change {
        Change::Lead(epoch, "r".to_owned())
    }

    fn slots(text: &str) -> SlotSet {
        SlotSet::parse(text).unwrap()
    }

    fn apply(map: &mut Map, node: &Node, change: Change) -> Result<bool, String> {
        let done = change.apply(map, node);
        if done.is_ok() {
            assert_eq!(Map::parse(&map.to_json()).as_ref(), Ok(&*map), "{change:?}");
        }
        done
    }

    /// Two primaries, and a replica of the first one that is in sync.
    fn three() -> (Map, [Node; 3]) {
        let mut map = Map::default();
        let nodes = [node('1', 'a'), node('2', 'b'), node('3', 'c')];
        apply(&mut map, &nodes[0], Change::AddSlots(slots("0-99"))).unwrap();
        apply(&mut map, &nodes[1], Change::Meet(nodes[0].clone())).unwrap();
        apply(&mut map, &nodes[1], Change::AddSlots(slots("100-199"))).unwrap();
        apply(&mut map, &nodes[2], Change::Meet(nodes[0].clone())).unwrap();
        apply(&mut map, &nodes[2], Change::Replicate(id('1'))).unwrap();
        apply(&mut map, &nodes[0], in_sync(&['1', '3', '2', '9'])).unwrap();
        (map, nodes)
    }

    #[test]
    fn a_cluster_is_made_by_the_words_of_redis_cli() {
        let (map, _) = three();
        let shard = map.shard(&id('a')).unwrap();
        assert_eq!((shard.eligible.clone(), shard.epoch), (vec![run('1'), run('3')], 0));
        assert_eq!((map.shards.len(), map.nodes.len()), (2, 3));
        assert_eq!(map.shard_of(&id('3')).unwrap().primary, id('1'));
    }

    #[test]
    fn slots_have_one_owner() {
        let (mut map, [one, two, three]) = three();
        let error = |map: &mut Map, node: &Node, change| apply(map, node, change).unwrap_err();
        assert_eq!(error(&mut map, &two, Change::AddSlots(slots("99"))), "ERR Slot 99 is already busy");
        assert_eq!(
            error(&mut map, &two, Change::DelSlots(slots("300"))),
            "ERR Slot 300 is already unassigned"
        );
        assert!(error(&mut map, &two, Change::DelSlots(slots("99"))).contains("another node"));
        assert!(error(&mut map, &three, Change::AddSlots(slots("300"))).contains("Only the primary"));
        apply(&mut map, &one, Change::DelSlots(slots("99"))).unwrap();
        apply(&mut map, &two, Change::AddSlots(slots("99"))).unwrap();
        assert_eq!(map.owner(99).unwrap().id, id('b'));
        assert!(apply(&mut map, &one, Change::FlushSlots).unwrap());
        assert!(!apply(&mut map, &one, Change::FlushSlots).unwrap());
    }

    #[test]
    fn a_successor_leads_at_a_higher_epoch_and_only_if_it_was_in_sync() {
        let (mut map, [one, two, three]) = three();
        assert!(apply(&mut map, &three, lead(1)).is_err());
        apply(&mut map, &three, lead(0)).unwrap();
        let shard = map.shard(&id('a')).unwrap();
        assert_eq!(
            (shard.primary.clone(), shard.epoch, shard.eligible.clone()),
            (id('3'), 1, vec![run('3')])
        );
        assert!(map.node(&id('1')).unwrap().is_down && shard.slots.len() == 100);
        assert!(apply(&mut map, &one, lead(1)).is_err(), "it is not in sync with the new one");
        assert!(apply(&mut map, &one, in_sync(&['1'])).is_err(), "it leads no more");
        assert!(apply(&mut map, &two, lead(0)).is_ok(), "of its own shard");
        apply(&mut map, &three, in_sync(&['3', '1'])).unwrap();
        assert!(!map.node(&id('1')).unwrap().is_down);
        apply(&mut map, &three, in_sync(&['3'])).unwrap();
        assert!(map.node(&id('1')).unwrap().is_down);
    }

    #[test]
    fn nodes_leave_and_are_forgotten() {
        let (mut map, [one, two, three]) = three();
        let error = |map: &mut Map, node: &Node, change| apply(map, node, change).unwrap_err();
        assert!(error(&mut map, &one, Change::Forget(id('1'))).contains("can't forget myself"));
        assert!(error(&mut map, &three, Change::Forget(id('1'))).contains("my master"));
        assert!(error(&mut map, &two, Change::Forget(id('1'))).contains("has slots"));
        assert_eq!(error(&mut map, &two, Change::Forget(id('9'))), format!("ERR Unknown node {}", id('9')));
        assert!(error(&mut map, &one, Change::Leave).contains("leads replicas"));
        assert!(error(&mut map, &one, Change::Replicate(id('2'))).contains("must be empty"));
        assert!(error(&mut map, &two, Change::Replicate(id('3'))).contains("not a replica"));
        let mut other = map.clone();
        apply(&mut other, &three, Change::Replicate(id('2'))).unwrap();
        assert!(!other.shard(&id('a')).unwrap().is_eligible(&id('3')), "it follows another primary");
        apply(&mut map, &two, Change::Forget(id('3'))).unwrap();
        assert!(map.node(&id('3')).is_none() && !map.shard(&id('a')).unwrap().is_eligible(&id('3')));
        assert!(!apply(&mut map, &one, Change::Forget(id('3'))).unwrap(), "told to each node in turn");
        // It may come back, and then is not forgotten.
        apply(&mut map, &three, Change::Join).unwrap();
        assert_eq!(map.shard_of(&id('3')).unwrap().id, id('c'));
        apply(&mut map, &three, Change::Leave).unwrap();
        assert_eq!((map.nodes.len(), map.shards.len()), (2, 2));
    }

    #[test]
    fn a_node_at_another_address_says_so() {
        let (mut map, [one, ..]) = three();
        assert!(!apply(&mut map, &one, Change::Move).unwrap());
        let moved = Node { host: "other".to_owned(), port: 9, shard: id('f'), ..one };
        assert!(apply(&mut map, &moved, Change::Move).unwrap());
        let node = map.node(&id('1')).unwrap();
        assert_eq!((node.host.as_str(), node.port, node.shard.clone()), ("other", 9, id('a')));
    }
}
