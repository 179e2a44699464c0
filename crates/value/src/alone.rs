//! An estimate of the bytes of a large value that no other version shares. An exact answer costs as much as
//! freeing it.
//!
//! A value's older version shares with the newer one all but the copied paths. Giving it up frees only those,
//! however large the value is.
//!
//! - A1: the walk goes down one path. At each node, a child with other owners counts as shared, with
//!   everything below it. One of the remaining children, chosen in proportion to its weight, counts for all
//!   of them. So the mean of many walks is the truth; a single one may be off by half.
//! - A2: nodes shared only among versions that are also given up count as shared until all but one are gone.

use stdx::hash::hash_u64;

/// A node that knows its children.
pub(crate) trait Below: Copy {
    /// Reports for each child its weight, in any unit, whether it has no other owner, and the child unless
    /// nothing is below it.
    fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<Self>));
}

/// An estimate of the bytes of `top` and everything below it that belong to `top` alone, with all its owners.
/// O(height), and a load of a count for each child of the nodes on the path.
#[inline(never)]
pub(crate) fn bytes(top: impl Below, bytes: usize) -> usize {
    (bytes as f64 * part(top, bytes as u64)) as usize
}

fn part(top: impl Below, seed: u64) -> f64 {
    let (mut node, mut part, mut random) = (top, 1.0, seed);
    loop {
        let (mut all, mut alone, mut chosen) = (0, 0, None);
        node.each_child(&mut |weight, is_alone, child| {
            all += weight;
            if is_alone && weight > 0 {
                alone += weight;
                random = hash_u64(random);
                if random % alone < weight {
                    chosen = child;
                }
            }
        });
        if all > 0 {
            part *= alone as f64 / all as f64;
        }
        match chosen {
            Some(child) => node = child,
            None => return part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hash, Ints, List, Set, Str, Value, ZSet};
    use std::collections::HashSet;

    /// A node by its number: its weight, number of owners, and children.
    #[derive(Clone, Copy)]
    struct Made<'a>(&'a [(u64, u32, Vec<usize>)], usize);

    impl Below for Made<'_> {
        fn each_child(self, told: &mut dyn FnMut(u64, bool, Option<Self>)) {
            for &child in &self.0[self.1].2 {
                told(self.0[child].0, self.0[child].1 == 1, Some(Made(self.0, child)));
            }
        }
    }

    #[test]
    fn the_mean_of_many_walks_is_the_truth() {
        let leaf = |weight, owners| (weight, owners, vec![]);
        // The leaves 4 (30), 5 (1) and 7 (5) of 100 have no other owner.
        let nodes = [
            (100, 0, vec![1, 2, 3]),
            (64, 1, vec![4, 5, 6]),
            (26, 2, vec![8]),
            (10, 1, vec![7, 9]),
            leaf(30, 1),
            leaf(1, 1),
            leaf(33, 2),
            leaf(5, 1),
            leaf(26, 1),
            leaf(5, 3),
        ];
        let walks = 20_000;
        let mean = (0..walks).map(|seed| part(Made(&nodes, 0), seed)).sum::<f64>() / walks as f64;
        assert!((mean - 0.36).abs() < 0.01, "{mean}");
        assert_eq!(part(Made(&nodes, 4), 1), 1.0, "a leaf is its own");
        assert_eq!(part(Made(&nodes, 2), 1), 1.0, "with any owners of the top");
    }

    type Change = fn(&mut Value);

    /// A large value of every form, and a change of one element.
    fn large() -> Vec<(Value, Change)> {
        let text = |i: u32| format!("element:{i}").into_bytes();
        let mut list = List::new();
        let (mut strings, mut numbers, mut mixed) = (Set::new(), Set::new(), Set::new());
        let (mut hash, mut zset, mut bits) = (Hash::new(), ZSet::new(), Ints::new());
        for i in 0..60_000u32 {
            let spread = u64::from(i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            list.push_back(&text(i));
            strings.insert(&text(i));
            numbers.insert(format!("{}", spread as i64).as_bytes());
            mixed.insert(&text(i));
            mixed.insert(format!("{}", spread as i64).as_bytes());
            hash.insert(&text(i), b"value");
            zset.insert(&text(i), f64::from(i));
            bits.insert(spread);
        }
        vec![
            (Value::Str(Str::from(&vec![b'x'; 4 << 20][..])), |v| {
                let Value::Str(v) = v else { unreachable!() };
                v.write_at(1 << 20, b"y");
            }),
            (Value::List(list), |v| {
                let Value::List(v) = v else { unreachable!() };
                v.set(30_000, b"y");
            }),
            (Value::Set(strings), |v| {
                let Value::Set(v) = v else { unreachable!() };
                assert!(v.insert(b"y"));
            }),
            (Value::Set(numbers), |v| {
                let Value::Set(v) = v else { unreachable!() };
                assert!(v.insert(b"12345"));
            }),
            // Only one of the two parts of such a set changes.
            (Value::Set(mixed), |v| {
                let Value::Set(v) = v else { unreachable!() };
                assert!(v.insert(b"12345"));
            }),
            (Value::Hash(hash), |v| {
                let Value::Hash(v) = v else { unreachable!() };
                v.insert(b"y", b"");
            }),
            (Value::ZSet(zset), |v| {
                let Value::ZSet(v) = v else { unreachable!() };
                v.insert(b"y", 0.5);
            }),
            (Value::Roaring64(bits), |v| {
                let Value::Roaring64(v) = v else { unreachable!() };
                assert!(v.insert(12345));
            }),
        ]
    }

    #[test]
    fn a_version_has_alone_what_was_copied_and_a_lone_value_all() {
        let mut kinds = HashSet::new();
        for (mut value, change) in large() {
            let kind = value.kind();
            kinds.insert(kind);
            let whole = value.alone_bytes();
            assert!(whole * 10 > value.mem_bytes() * 8, "{kind:?}: {whole} of {}", value.mem_bytes());
            // A clone with the same root shares everything; the caller checks for that.
            let old = value.clone();
            assert_eq!(value.alone_bytes(), whole, "{kind:?}");
            change(&mut value);
            let (one, other) = (old.alone_bytes(), value.alone_bytes());
            assert!(one > 0 && one < whole / 10, "{kind:?}: {one} of {whole}");
            assert!(other > 0 && other < whole / 10, "{kind:?}: {other} of {whole}");
            drop(old);
            assert!(value.alone_bytes() > whole / 2, "{kind:?}");
        }
        assert_eq!(kinds.len(), 6);
    }
}
