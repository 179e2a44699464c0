//! The map as one node sees it, ready for questions about a slot.

use crate::map::{Map, Node, Shard};
use crate::slots::SLOTS;

/// See the module. It never changes: a new map makes a new one.
#[derive(Debug)]
pub struct Topology {
    pub map: Map,
    /// The version of the map in the coordinator; 0: the node is not part of it.
    pub revision: u64,
    me: usize,
    /// For each slot the number of its shard, plus one; 0: nobody's.
    owners: Box<[u16]>,
    mine: u16,
    covered: usize,
}

/// The owner of a slot.
#[derive(Debug, PartialEq)]
pub enum Owner<'a> {
    /// This node's shard.
    Mine,
    /// The primary of another shard.
    Other(&'a Node),
    Nobody,
}

impl Topology {
    /// Makes that of a node which is part of the map. None: it is not. O(slots)
    pub fn of_member(map: Map, revision: u64, me: &str) -> Option<Topology> {
        let me = map.nodes.iter().position(|node| node.id == me)?;
        let mut owners = vec![0; SLOTS].into_boxed_slice();
        let mut mine = 0;
        for (at, shard) in map.shards.iter().enumerate() {
            let number = u16::try_from(at + 1).ok()?;
            shard.slots.iter().for_each(|slot| owners[slot as usize] = number);
            if shard.id == map.nodes[me].shard {
                mine = number;
            }
        }
        let covered = owners.iter().filter(|owner| **owner > 0).count();
        Some(Topology { map, revision, me, owners, mine, covered })
    }

    /// Makes that of a node which is not part of the map: it knows itself alone.
    pub fn alone(me: Node) -> Topology {
        let mut map = Map::default();
        let id = me.id.clone();
        map.shards.push(Shard::new(&me.shard, &me.id, 0));
        map.nodes.push(me);
        Topology::of_member(map, 0, &id).expect("the node is the only one of this map")
    }

    pub fn me(&self) -> &Node {
        &self.map.nodes[self.me]
    }

    pub fn my_shard(&self) -> &Shard {
        &self.map.shards[self.mine as usize - 1]
    }

    /// Whether the map names this node as the primary of its shard.
    pub fn is_primary(&self) -> bool {
        self.my_shard().primary == self.me().id
    }

    /// Whether it is part of the map.
    pub fn is_member(&self) -> bool {
        self.revision > 0
    }

    /// O(1), and O(nodes) for another shard's.
    #[inline]
    pub fn owner(&self, slot: u16) -> Owner<'_> {
        match self.owners[slot as usize] {
            0 => Owner::Nobody,
            shard if shard == self.mine => Owner::Mine,
            shard => self.primary_of(shard),
        }
    }

    #[cold]
    fn primary_of(&self, number: u16) -> Owner<'_> {
        let shard = &self.map.shards[number as usize - 1];
        self.map.node(&shard.primary).map_or(Owner::Nobody, Owner::Other)
    }

    /// The primary of this node's shard.
    pub fn my_primary(&self) -> Option<&Node> {
        self.map.node(&self.my_shard().primary)
    }

    /// Count of slots that have an owner.
    pub fn covered(&self) -> usize {
        self.covered
    }

    /// Count of shards with slots.
    pub fn size(&self) -> usize {
        self.map.shards.iter().filter(|shard| !shard.slots.is_empty()).count()
    }

    /// The highest epoch.
    pub fn epoch(&self) -> u64 {
        self.map.shards.iter().map(|shard| shard.epoch).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::SlotSet;

    fn node(id: &str, shard: &str) -> Node {
        Node { id: id.to_owned(), shard: shard.to_owned(), ..Node::default() }
    }

    #[test]
    fn slots_have_owners() {
        let mut map = Map::default();
        for (shard, slots) in [("s1", "0-99"), ("s2", "100-16382")] {
            let mut new = Shard::new(shard, &format!("{shard}-p"), 3);
            new.slots = SlotSet::parse(slots).unwrap();
            map.shards.push(new);
            map.nodes.push(node(&format!("{shard}-p"), shard));
        }
        map.nodes.push(node("r", "s2"));
        let of = |me| Topology::of_member(map.clone(), 5, me).unwrap();
        let (primary, replica) = (of("s1-p"), of("r"));
        assert_eq!((primary.owner(0), primary.owner(16383)), (Owner::Mine, Owner::Nobody));
        assert_eq!(primary.owner(100), Owner::Other(map.node("s2-p").unwrap()));
        assert_eq!(
            (replica.owner(100), replica.is_primary(), primary.is_primary()),
            (Owner::Mine, false, true)
        );
        assert_eq!(
            (replica.covered(), replica.size(), replica.my_primary().unwrap().id.as_str()),
            (16383, 2, "s2-p")
        );
        assert!(Topology::of_member(map, 5, "x").is_none());
        let alone = Topology::alone(node("n", "s"));
        assert!(alone.is_primary() && !alone.is_member() && alone.owner(0) == Owner::Nobody);
    }
}
