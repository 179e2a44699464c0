//! Tries against `BTreeMap`, with clones taken at random moments and compared later, and with bad hashes that
//! make the trie use all their bits.

use super::kind::{EntryKind, Scores};
use super::*;
use crate::testing::Rng;
use std::collections::BTreeMap;

/// Scores under a hash with 6 bits, the lowest ones: paths are 15 inner nodes long and leaves overflow.
struct Weak;

impl EntryKind for Weak {
    type Key<'a> = &'a [u8];
    type Entry<'a> = (&'a [u8], f64);
    type Times = ();
    type Beside = ();

    fn key<'a>(entry: Self::Entry<'a>) -> Self::Key<'a> {
        entry.0
    }

    fn hash(key: &[u8]) -> u64 {
        0xABCD_0000_0000_0000 | Scores::hash(key) >> 58
    }

    fn size(entry: (&[u8], f64), width: u8) -> usize {
        Scores::size(entry, width)
    }

    fn heap_size(entry: (&[u8], f64)) -> usize {
        Scores::heap_size(entry)
    }

    unsafe fn write(entry: (&[u8], f64), width: u8, at: *mut u8) {
        // SAFETY: the caller's, here and below.
        unsafe { Scores::write(entry, width, at) }
    }

    unsafe fn read<'a>(at: *const u8, width: u8) -> (&'a [u8], f64) {
        // SAFETY: the caller's.
        unsafe { Scores::read(at, width) }
    }

    unsafe fn matches(at: *const u8, width: u8, key: &[u8]) -> bool {
        // SAFETY: the caller's.
        unsafe { Scores::matches(at, width, key) }
    }

    unsafe fn extent(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { Scores::extent(at) }
    }

    unsafe fn heap(at: *const u8) -> usize {
        // SAFETY: the caller's.
        unsafe { Scores::heap(at) }
    }

    unsafe fn retain(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { Scores::retain(at) }
    }

    unsafe fn release(at: *const u8) {
        // SAFETY: the caller's.
        unsafe { Scores::release(at) }
    }
}

type Model = BTreeMap<Vec<u8>, f64>;

fn compare<K>(trie: &Trie<K>, model: &Model)
where
    K: for<'a> EntryKind<Key<'a> = &'a [u8], Entry<'a> = (&'a [u8], f64)>,
{
    trie.check_invariants();
    assert_eq!(trie.len(), model.len());
    let all: Vec<_> = trie.iter().map(|(member, score)| (member.to_vec(), score)).collect();
    assert_eq!(all.iter().cloned().collect::<Model>(), *model);
    for rank in [0, 1, all.len() / 3, all.len().saturating_sub(1), all.len()] {
        let nth = trie.nth(rank).map(|(member, score)| (member.to_vec(), score));
        assert_eq!(nth.as_ref(), all.get(rank));
        let tail = trie.iter_from(rank).map(|(member, score)| (member.to_vec(), score));
        assert!(tail.eq(all.iter().skip(rank).cloned()));
    }
    for (member, score) in model {
        assert_eq!(trie.get(member), Some((&member[..], *score)));
    }
}

fn against_model<K>(seed: u64, keys: u64, steps: usize, long: usize)
where
    K: for<'a> EntryKind<Key<'a> = &'a [u8], Entry<'a> = (&'a [u8], f64)>,
{
    let mut rng = Rng::new(seed);
    let (mut trie, mut model) = (Trie::<K>::new(), Model::new());
    let mut clones: Vec<(Trie<K>, Model)> = Vec::new();
    let mut growing = true;
    for _ in 0..steps {
        let member = rng.text(keys, long);
        if rng.below(10) < if growing { 7 } else { 3 } {
            let score = rng.below(1000) as f64;
            assert_eq!(trie.insert((&member, score)), model.insert(member, score).is_none());
        } else {
            assert_eq!(trie.remove(&member), model.remove(&member).is_some());
        }
        match rng.below(400) {
            0 => clones.push((trie.clone(), model.clone())),
            1 if !clones.is_empty() => {
                let (trie, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
                compare(&trie, &model);
            }
            2 => growing = !growing,
            3 => compare(&trie, &model),
            // Go on with a clone: the original's nodes become the shared ones.
            4 if !clones.is_empty() => {
                (trie, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
            }
            _ => {}
        }
    }
    compare(&trie, &model);
    clones.iter().for_each(|(trie, model)| compare(trie, model));
}

#[test]
fn a_trie_agrees_with_a_map_whatever_is_cloned_meanwhile() {
    for seed in 0..crate::testing::rounds(8) {
        against_model::<Scores>(seed, 3000, 6000, 0);
        against_model::<Scores>(seed + 100, 300, 4000, 700);
    }
}

#[test]
fn hashes_that_agree_in_all_but_their_last_bits_are_no_problem() {
    for seed in 0..crate::testing::rounds(6) {
        against_model::<Weak>(seed, 500, 4000, 0);
        against_model::<Weak>(seed + 100, 200, 2000, 600);
    }
}

#[test]
fn scan_visits_what_stays_however_the_trie_changes() {
    for seed in 0..crate::testing::rounds(20) {
        let mut rng = Rng::new(seed);
        let mut trie = Trie::<Scores>::new();
        let stays: Vec<String> = (0..rng.below(800)).map(|i| format!("stay:{i}")).collect();
        let comes: Vec<String> = (0..5000).map(|i| format!("come:{i}")).collect();
        stays.iter().for_each(|text| assert!(trie.insert((text.as_bytes(), 1.0))));
        let mut present = 0;
        let mut seen = std::collections::HashSet::new();
        let (mut cursor, mut steps) = (0, 0);
        loop {
            cursor = trie.scan(cursor, 1 + rng.below(40) as usize, &mut |(member, _)| {
                seen.insert(member.to_vec());
            });
            steps += 1;
            if cursor == 0 {
                break;
            }
            assert!(cursor < 1 << 52);
            let target = rng.below(comes.len() as u64) as usize;
            comes[present.min(target)..target].iter().for_each(|t| assert!(trie.insert((t.as_bytes(), 0.0))));
            comes[target..present.max(target)].iter().for_each(|t| assert!(trie.remove(t.as_bytes())));
            present = target;
        }
        assert!(stays.iter().all(|text| seen.contains(text.as_bytes())));
        assert!(steps <= 2 + 3 * (5800 / 2));
    }
}

#[test]
fn scan_steps_are_about_as_large_as_asked() {
    let mut trie = Trie::<Scores>::new();
    (0..20_000).for_each(|i: u32| assert!(trie.insert((&i.to_le_bytes(), 0.0))));
    let (mut cursor, mut steps, mut visited) = (0, 0, 0);
    loop {
        let before = visited;
        cursor = trie.scan(cursor, 10, &mut |_| visited += 1);
        assert!(visited - before < 60);
        steps += 1;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(visited, 20_000);
    assert!((700..2500).contains(&steps), "{steps}");
}

#[test]
fn scan_ends_with_the_worst_hashes() {
    let mut trie = Trie::<Weak>::new();
    (0..1000).for_each(|i: u32| assert!(trie.insert((&i.to_le_bytes(), 0.0))));
    let mut seen = std::collections::HashSet::new();
    let mut cursor = 0;
    loop {
        cursor = trie.scan(cursor, 10, &mut |(member, _)| assert!(seen.insert(member.to_vec())));
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
}

#[test]
fn a_change_under_a_clone_leaves_nearly_all_nodes_shared() {
    let mut trie = Trie::<Scores>::new();
    (0..50_000).for_each(|i: u32| assert!(trie.insert((&i.to_le_bytes(), 0.0))));
    let clone = trie.clone();
    assert!(trie.root() == clone.root());
    // Nothing to remove: nothing is copied.
    assert!(!trie.remove(b"absent"));
    assert!(trie.root() == clone.root());
    assert!(trie.remove(&7u32.to_le_bytes()));
    let (Some(a), Some(b)) = (trie.root(), clone.root()) else { unreachable!() };
    // SAFETY: both tries live.
    let (View::Inner(a), View::Inner(b)) = (unsafe { (a.view(), b.view()) }) else { unreachable!() };
    let differing = a.runs().filter(|&(start, _)| a.child(start) != b.child(start)).count();
    assert_eq!(differing, 1);
    assert_eq!((trie.len(), clone.len()), (49_999, 50_000));
}
