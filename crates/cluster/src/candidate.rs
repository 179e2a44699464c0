//! The successor behind a lease that ended: the node of the shard that has most of its data.
//!
//! - CA1: a node offers only if it may lead: it is in sync by the map, in this run of its process; or it is the
//!   last primary. Nodes that all started anew may lead once all of them have offered.
//! - CA2: offers name the epoch that ended, so that those of an earlier end count for nothing.
//! - CA3: with `acks` acknowledgements asked of replicas, so many offers are needed that one of them has what
//!   was acknowledged.

use crate::map::{Node, Shard};
use serde_json::{Value, json};
use std::cmp::Ordering;

/// The offer of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub node: String,
    /// The epoch that ended.
    pub epoch: u64,
    /// Its place in the shard's stream.
    pub offset: u64,
    /// Whether its process is the one that was in sync.
    pub is_same_run: bool,
}

impl Offer {
    pub fn to_json(&self) -> Vec<u8> {
        let value = json!({"epoch": self.epoch, "offset": self.offset, "same_run": self.is_same_run});
        value.to_string().into_bytes()
    }

    /// Reads the offer of a node. None: it is none.
    pub fn parse(node: &str, text: &[u8]) -> Option<Offer> {
        let value: Value = serde_json::from_slice(text).ok()?;
        Some(Offer {
            node: node.to_owned(),
            epoch: value.get("epoch")?.as_u64()?,
            offset: value.get("offset")?.as_u64()?,
            is_same_run: value.get("same_run")?.as_bool()?,
        })
    }

    fn is_behind(&self, other: &Offer) -> bool {
        (self.offset, &self.node).cmp(&(other.offset, &other.node)) == Ordering::Less
    }
}

/// The next step of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It tries to take the lease.
    Try,
    /// Another one has more; it has its time first.
    Behind(String),
    /// Not enough have offered.
    Lacks(Vec<String>),
    /// It may not lead.
    Barred,
}

/// The verdict about a candidate that has offered itself. `offers`: all of the shard. `is_late`: the others had
/// their time. O(offers)
pub fn judge(shard: &Shard, me: &str, offers: &[Offer], is_late: bool) -> Verdict {
    let is_member = |node: &str| shard.is_eligible(node) || shard.primary == node;
    let current: Vec<&Offer> =
        offers.iter().filter(|offer| offer.epoch == shard.epoch && is_member(&offer.node)).collect();
    let Some(own) = current.iter().find(|offer| offer.node == me) else { return Verdict::Barred };
    let lacking = |all: Vec<&str>| -> Vec<String> {
        let has = |node: &&str| current.iter().any(|offer| offer.node == **node);
        all.into_iter().filter(|node| !has(node)).map(str::to_owned).collect()
    };
    let mut replicas: Vec<&str> = shard.eligible_nodes().filter(|node| *node != shard.primary).collect();
    let same_run: Vec<&Offer> = current.iter().copied().filter(|offer| offer.is_same_run).collect();
    if same_run.is_empty() {
        // The whole shard started anew.
        replicas.push(&shard.primary);
        let lacks = lacking(replicas);
        if !lacks.is_empty() {
            return Verdict::Lacks(lacks);
        }
        return best(own, &current, is_late);
    }
    if !own.is_same_run {
        return Verdict::Barred;
    }
    let asked = shard.acks as usize;
    let needed = if asked == 0 { 1 } else { (replicas.len() + 1).saturating_sub(asked).max(1) };
    if same_run.len() < needed {
        return Verdict::Lacks(lacking(replicas));
    }
    best(own, &same_run, is_late)
}

fn best(own: &Offer, offers: &[&Offer], is_late: bool) -> Verdict {
    match offers.iter().find(|offer| own.is_behind(offer)) {
        Some(offer) if !is_late => Verdict::Behind(offer.node.clone()),
        _ => Verdict::Try,
    }
}

/// Whether the process of a node is the one that the map names as in sync.
pub fn is_same_run(shard: &Shard, node: &Node, run: &str) -> bool {
    shard.eligible.iter().any(|entry| entry.split_once('/') == Some((&node.id, run)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(eligible: &[&str], acks: u64) -> Shard {
        let eligible = eligible.iter().map(|node| format!("{node}/1")).collect();
        Shard { eligible, acks, ..Shard::new("s", "p", 7) }
    }

    fn offer(node: &str, offset: u64) -> Offer {
        Offer { node: node.to_owned(), epoch: 7, offset, is_same_run: true }
    }

    #[test]
    fn the_one_with_most_data_leads_and_the_next_one_when_it_had_its_time() {
        let shard = shard(&["p", "a", "b", "c"], 0);
        let offers = [offer("a", 10), offer("b", 20), offer("c", 20)];
        assert_eq!(judge(&shard, "a", &offers, false), Verdict::Behind("b".to_owned()));
        assert_eq!(judge(&shard, "b", &offers, false), Verdict::Behind("c".to_owned()));
        assert_eq!(judge(&shard, "c", &offers, false), Verdict::Try);
        assert_eq!(judge(&shard, "a", &offers, true), Verdict::Try);
    }

    #[test]
    fn who_was_not_in_sync_does_not_lead() {
        let shard = shard(&["p", "a"], 0);
        let old = Offer { epoch: 6, ..offer("a", 90) };
        assert_eq!(judge(&shard, "x", &[offer("x", 99), offer("a", 1)], true), Verdict::Barred);
        assert_eq!(judge(&shard, "a", &[offer("x", 99), offer("a", 1)], false), Verdict::Try);
        assert_eq!(judge(&shard, "a", &[old], true), Verdict::Barred, "of an earlier end");
        let restarted = Offer { is_same_run: false, ..offer("a", 50) };
        let primary = offer("p", 9);
        assert_eq!(judge(&shard, "a", &[restarted, primary], true), Verdict::Barred, "it came back empty");
    }

    #[test]
    fn a_shard_that_started_anew_waits_for_all() {
        let shard = shard(&["p", "a", "b"], 0);
        let anew = |node: &str, offset| Offer { is_same_run: false, ..offer(node, offset) };
        let mut offers = vec![anew("p", 5), anew("a", 6)];
        assert_eq!(judge(&shard, "a", &offers, true), Verdict::Lacks(vec!["b".to_owned()]));
        offers.push(anew("b", 4));
        assert_eq!(judge(&shard, "a", &offers, false), Verdict::Try);
        assert_eq!(judge(&shard, "p", &offers, false), Verdict::Behind("a".to_owned()));
        // One of them alone is the whole shard.
        assert_eq!(judge(&Shard::new("s", "p", 7), "p", &[anew("p", 0)], false), Verdict::Try);
    }

    #[test]
    fn what_was_acknowledged_is_among_the_offers_that_are_needed() {
        let shard = shard(&["p", "a", "b", "c"], 1);
        let mut offers = vec![offer("a", 1), offer("b", 2)];
        assert_eq!(judge(&shard, "b", &offers, true), Verdict::Lacks(vec!["c".to_owned()]));
        offers.push(offer("c", 3));
        assert_eq!(judge(&shard, "c", &offers, false), Verdict::Try);
    }

    #[test]
    fn offers_are_written_and_read() {
        let own = offer("a", 12);
        assert_eq!(Offer::parse("a", &own.to_json()), Some(own));
        assert_eq!(Offer::parse("a", b"{}"), None);
    }
}
