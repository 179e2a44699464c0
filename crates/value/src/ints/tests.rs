//! Sets of integers against a list of the places where membership changes, and against the roaring crates.

use super::*;
use crate::testing::{Rng, rounds};
use std::collections::BTreeSet;
use std::ops::ControlFlow::{Break, Continue};

/// Numbers at which membership changes. A number is an element if an odd count of them is not above it.
#[derive(Clone, Default)]
struct Model {
    edges: BTreeSet<u128>,
}

impl Model {
    fn contains(&self, x: u64) -> bool {
        self.edges.range(..=u128::from(x)).count() % 2 == 1
    }

    fn assign(&mut self, first: u64, last: u64, present: bool) {
        let (start, end) = (u128::from(first), u128::from(last) + 1);
        let before = first > 0 && self.contains(first - 1);
        let after = last < u64::MAX && self.contains(last + 1);
        self.edges.retain(|edge| !(start..=end).contains(edge));
        if before != present {
            self.edges.insert(start);
        }
        if after != present {
            self.edges.insert(end);
        }
    }

    fn flip(&mut self, first: u64, last: u64) {
        for edge in [u128::from(first), u128::from(last) + 1] {
            if !self.edges.remove(&edge) {
                self.edges.insert(edge);
            }
        }
    }

    /// First and last of every run.
    fn runs(&self) -> Vec<(u64, u64)> {
        let mut edges: Vec<u128> = self.edges.iter().copied().collect();
        if edges.len() % 2 == 1 {
            edges.push(1 << 64);
        }
        edges.chunks(2).map(|two| (two[0] as u64, (two[1] - 1) as u64)).collect()
    }

    fn len(&self) -> u128 {
        self.runs().iter().map(|&(first, last)| u128::from(last - first) + 1).sum()
    }

    fn combine(&self, op: Op, other: &Model) -> Model {
        let mut result = Model::default();
        let mut inside = false;
        for &edge in self.edges.union(&other.edges) {
            let has = |model: &Model| model.edges.range(..=edge).count() % 2 == 1;
            let now = match op {
                Op::And => has(self) && has(other),
                Op::Or => has(self) || has(other),
                Op::Xor => has(self) != has(other),
                Op::AndNot => has(self) && !has(other),
            };
            if now != inside && edge < 1 << 64 {
                result.edges.insert(edge);
                inside = now;
            }
        }
        if inside {
            result.edges.insert(1 << 64);
        }
        result
    }
}

/// Numbers of some shape: near each other, spread, at the ends.
fn number(rng: &mut Rng, shape: u64) -> u64 {
    match shape {
        0 => rng.below(3000),
        1 => rng.below(1 << 20),
        2 => rng.below(1 << 32),
        3 => rng.next(),
        4 => rng.below(1 << 18).wrapping_sub(1 << 17),
        5 => (rng.below(40) << 40) + rng.below(500),
        _ => signed::key(rng.below(100_000) as i64 - 50_000),
    }
}

fn span(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => rng.below(5),
        2 => rng.below(300),
        3 => rng.below(1 << 18),
        4 => rng.next() >> rng.below(64),
        _ => (1 << (4 * rng.below(16))) - 1,
    }
}

fn compare(ints: &Ints, model: &Model, rng: &mut Rng) {
    assert!(ints.runs().take(2_000).eq(model.runs().into_iter().take(2_000)));
    ints.check_invariants();
    assert_eq!((ints.len(), ints.is_empty()), (model.len(), model.edges.is_empty()));
    let runs = model.runs();
    assert_eq!(ints.min(), runs.first().map(|run| run.0));
    assert_eq!(ints.max(), runs.last().map(|run| run.1));
    let mut expected = runs.iter().flat_map(|&(first, last)| first..=last).take(3000);
    let mut found = ints.iter().take(3000);
    assert!(found.by_ref().eq(expected.by_ref()));
    let mut below = 0u128;
    for &(first, last) in &runs {
        assert_eq!(u128::from(ints.rank(first)), below);
        assert_eq!(ints.nth(below as u64), Some(first));
        assert_eq!(ints.next(first), Some(first));
        assert_eq!(ints.next_absent(first), last.checked_add(1));
        assert_eq!(ints.count_range(first, last), u128::from(last - first) + 1);
        assert_eq!(ints.iter_from(last).next(), Some(last));
        below += u128::from(last - first) + 1;
    }
    let mut numbers: Vec<u64> = (0..128).map(|i| number(rng, i % 7)).collect();
    if rng.below(2) == 0 {
        numbers.sort_unstable();
    }
    let each = ints.contains_each(&numbers, u128::MAX);
    assert!((0..128).all(|i| (each >> i & 1 == 1) == ints.contains(numbers[i])));
    assert_eq!(ints.contains_each(&numbers, 0xF0F0), each & 0xF0F0);
    for _ in 0..20 {
        let shape = rng.below(7);
        let x = number(rng, shape);
        assert_eq!(ints.contains(x), model.contains(x));
        let next = runs.iter().find(|run| run.1 >= x).map(|run| run.0.max(x));
        assert_eq!((ints.next(x), ints.iter_from(x).next()), (next, next));
        let absent =
            runs.iter().find(|run| (run.0..=run.1).contains(&x)).map_or(Some(x), |run| run.1.checked_add(1));
        assert_eq!(ints.next_absent(x), absent);
        let rank: u64 = runs.iter().filter(|run| run.0 < x).map(|run| run.1.min(x - 1) - run.0 + 1).sum();
        assert_eq!(ints.rank(x), rank);
    }
}

/// One change to a set and its model.
fn change(rng: &mut Rng, shape: u64, ints: &mut Ints, model: &mut Model) {
    let x = number(rng, shape);
    match rng.below(100) {
        0..50 => {
            assert_eq!(ints.insert(x), !model.contains(x));
            model.assign(x, x, true);
        }
        50..75 => {
            let x = ints.next(x).filter(|_| rng.below(4) > 0).unwrap_or(x);
            assert_eq!(ints.remove(x), model.contains(x));
            model.assign(x, x, false);
        }
        75..80 => {
            assert_eq!(ints.toggle(x), !model.contains(x));
            model.flip(x, x);
        }
        what => {
            let last = x.saturating_add(span(rng));
            match what % 10 {
                0..3 => {
                    ints.insert_range(x, last);
                    model.assign(x, last, true);
                }
                3..7 => {
                    ints.remove_range(x, last);
                    model.assign(x, last, false);
                }
                7..9 => {
                    ints.flip_range(x, last);
                    model.flip(x, last);
                }
                _ => assert!(ints.optimize(&mut |_| Continue(()))),
            }
        }
    }
}

#[test]
fn a_set_agrees_with_the_model_through_all_its_forms() {
    for seed in 0..rounds(35) {
        let mut rng = Rng::new(seed);
        let shape = seed % 7;
        let (mut ints, mut model) = (Ints::new(), Model::default());
        let mut clones: Vec<(Ints, Model)> = Vec::new();
        for step in 0..rounds(400) {
            change(&mut rng, shape, &mut ints, &mut model);
            if step % 20 == 0 {
                compare(&ints, &model, &mut rng);
            }
            match rng.below(60) {
                0 => clones.push((ints.clone(), model.clone())),
                1 if !clones.is_empty() => {
                    let at = rng.below(clones.len() as u64) as usize;
                    (ints, model) = clones.swap_remove(at);
                }
                _ => {}
            }
        }
        compare(&ints, &model, &mut rng);
        clones.iter().for_each(|(ints, model)| compare(ints, model, &mut rng));
    }
}

#[test]
fn single_numbers_pass_through_every_form_and_back() {
    // From an array to a bitmap to a full slot, and back by removals.
    let mut ints = Ints::new();
    let order = |i: u64| (i * 40_503) % 65_536;
    for i in 0..65_536 {
        assert!(ints.insert(order(i)));
        if i.is_power_of_two() {
            ints.check_invariants();
        }
    }
    assert_eq!(ints.statistics().full, 1);
    let whole = ints.clone();
    for i in 0..65_536 {
        assert!(ints.remove(order(i)));
        if i % 4096 == 0 {
            ints.check_invariants();
            assert_eq!(ints.len(), 65_535 - u128::from(i));
        }
    }
    assert!(ints.is_empty() && whole.len() == 65_536);
    // In order, runs take over early and grow in place.
    (0..70_000).for_each(|i| assert!(ints.insert(i)));
    ints.check_invariants();
    let statistics = ints.statistics();
    assert_eq!((statistics.full, statistics.runs, ints.len()), (1, 1, 70_000));
    assert!(ints.mem_bytes() < 400);
}

#[test]
fn ranges_of_any_width_take_no_memory() {
    let mut ints = Ints::new();
    ints.insert_range(0, u64::MAX);
    assert_eq!((ints.len(), ints.mem_bytes()), (1 << 64, 0));
    assert!(ints == Ints::all());
    ints.remove(1 << 40);
    ints.check_invariants();
    assert_eq!(ints.len(), (1 << 64) - 1);
    assert!(ints.mem_bytes() < 5000);
    assert_eq!(ints.next_absent(5), Some(1 << 40));
    ints.insert(1 << 40);
    assert_eq!((ints.mem_bytes(), ints.next_absent(0)), (0, None));
    ints.clear();
    ints.insert_range(5, u64::from(u32::MAX));
    assert_eq!(ints.len(), (1 << 32) - 5);
    assert!(ints.mem_bytes() < 3000);
    ints.flip_range(0, u64::from(u32::MAX));
    assert!(ints.iter().eq(0..5));
}

/// Sets to be combined: some of them changed clones of others.
fn family(rng: &mut Rng) -> Vec<(Ints, Model)> {
    let mut sets: Vec<(Ints, Model)> = Vec::new();
    for _ in 0..3 {
        let (mut ints, mut model) = match sets.last() {
            Some((ints, model)) if rng.below(2) == 0 => (ints.clone(), model.clone()),
            _ => (Ints::new(), Model::default()),
        };
        let shape = rng.below(7);
        for _ in 0..rng.below(150) {
            change(rng, shape, &mut ints, &mut model);
        }
        sets.push((ints, model));
    }
    sets
}

#[test]
fn algebra_agrees_with_the_model() {
    for seed in 0..rounds(40) {
        let mut rng = Rng::new(seed);
        let sets = family(&mut rng);
        let go = &mut |_| Continue(());
        for (a, a_model) in &sets {
            for (b, b_model) in &sets {
                for op in [Op::And, Op::Or, Op::Xor, Op::AndNot] {
                    let result = a.combine(op, b, go).unwrap();
                    compare(&result, &a_model.combine(op, b_model), &mut rng);
                }
                let common = a_model.combine(Op::And, b_model).len();
                assert_eq!(a.count_common(b, go), Some(common));
                assert_eq!(a.intersects(b, go), Some(common > 0));
                assert_eq!(a.is_subset(b, go), Some(common == a.len()));
                assert_eq!(a == b, a_model.edges == b_model.edges);
                let either = a_model.combine(Op::Or, b_model).len();
                let part = (either > 0).then(|| common as f64 / either as f64);
                assert_eq!(a.jaccard(b, go), Some(part));
            }
        }
    }
}

/// Scattered numbers below 2^`bits`, some of them among `others`.
fn scattered(rng: &mut Rng, bits: u32, count: u64, others: &BTreeSet<u64>) -> BTreeSet<u64> {
    let common = others.iter().copied().filter(|x| x % 5 == 0);
    common.chain((0..count).map(|_| rng.next() >> (64 - bits))).collect()
}

#[test]
fn many_scattered_numbers_are_found_and_combined_as_in_a_list() {
    let mut rng = Rng::new(9);
    // Leaves of few wide numbers, arrays of a few and of hundreds, and bitmaps, against each other.
    for bits in [64, 40, 32, 24, 21, 18] {
        for (many, more) in [(600, 20_000), (20_000, 20_000), (20_000, 600)] {
            let a_list = scattered(&mut rng, bits, rounds(many), &BTreeSet::new());
            let b_list = scattered(&mut rng, bits, rounds(more), &a_list);
            let (a, b): (Ints, Ints) = (a_list.iter().copied().collect(), b_list.iter().copied().collect());
            let go = &mut |_| Continue(());
            let table: [(Op, Vec<u64>); 4] = [
                (Op::And, a_list.intersection(&b_list).copied().collect()),
                (Op::Or, a_list.union(&b_list).copied().collect()),
                (Op::Xor, a_list.symmetric_difference(&b_list).copied().collect()),
                (Op::AndNot, a_list.difference(&b_list).copied().collect()),
            ];
            for (op, expected) in table {
                let result = a.combine(op, &b, go).unwrap();
                result.check_invariants();
                assert!(result.iter().eq(expected), "{op:?} of {bits} bits");
            }
            assert_eq!(a.count_common(&b, go), Some(a_list.intersection(&b_list).count() as u128));
            let (mut pieces, mut beside) = (b.iter(), a.iter());
            loop {
                let piece = pieces.piece();
                let bits = a.contains_each(piece, u128::MAX);
                assert_eq!(beside.meet(piece), bits);
                assert!(
                    (0..128)
                        .all(|i| (bits >> i & 1 == 1) == piece.get(i).is_some_and(|x| a_list.contains(x)))
                );
                if piece.is_empty() {
                    break;
                }
            }
        }
    }
}

#[test]
fn what_loses_nothing_is_shared_whole() {
    let mut rng = Rng::new(10);
    for bits in [64, 32, 21] {
        // Even numbers minus odd ones.
        let even: Ints = (0..rounds(30_000)).map(|_| rng.next() >> (64 - bits) & !1).collect();
        let odd: Ints = (0..rounds(30_000)).map(|_| rng.next() >> (64 - bits) | 1).collect();
        assert!(even.combine(Op::AndNot, &odd, &mut |_| Continue(())).unwrap().ptr_eq(&even));
    }
}

#[test]
fn algebra_stops_when_told_to_and_shares_what_it_can() {
    let a: Ints = (0..2_000_000).filter(|x| x % 3 != 0).collect();
    let mut b = a.clone();
    b.remove(1_000_000);
    let mut work = 0;
    let shared = a.combine(Op::And, &b, &mut |n| {
        work += n;
        Continue(())
    });
    assert!(work <= 64, "{work}");
    assert!(shared.unwrap() == b);
    let c: Ints = (0..2_000_000).filter(|x| x % 2 == 0).collect();
    let mut left = 5;
    let stopped = a.combine(Op::Xor, &c, &mut |_| {
        left -= 1;
        if left == 0 { Break(()) } else { Continue(()) }
    });
    assert!(stopped.is_none() && left == 0);
}

/// Numbers of 32 bits with dense and sparse parts.
fn u32s(rng: &mut Rng) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let (start, width) = (rng.below(1 << 21), 1 << (6 + rng.below(15)));
        let count = rng.below(12_000);
        numbers.extend((0..count).map(|_| (start + rng.below(width)) as u32));
    }
    numbers
}

#[test]
#[cfg_attr(miri, ignore)]
fn both_roaring_crates_agree() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (left, right) = (u32s(&mut rng), u32s(&mut rng));
        let ours = |numbers: &[u32]| numbers.iter().map(|&x| u64::from(x)).collect::<Ints>();
        let (mut a, mut b) = (ours(&left), ours(&right));
        let (mut ra, mut rb): (roaring::RoaringBitmap, roaring::RoaringBitmap) =
            (left.iter().copied().collect(), right.iter().copied().collect());
        let (mut ca, mut cb) = (croaring::Bitmap::of(&left), croaring::Bitmap::of(&right));
        for _ in 0..6 {
            let first = rng.below(1 << 21) as u32;
            let last = first + rng.below(200_000) as u32;
            let (wide_first, wide_last) = (u64::from(first), u64::from(last));
            a.insert_range(wide_first, wide_last);
            ra.insert_range(first..=last);
            ca.add_range(first..=last);
            b.remove_range(wide_first + 77, wide_last + 1077);
            rb.remove_range(first + 77..=last + 1077);
            cb.remove_range(first + 77..=last + 1077);
            a.flip_range(wide_first / 2, wide_first);
            ca.flip_inplace(first / 2..=first);
            ra ^= (first / 2..=first).collect::<roaring::RoaringBitmap>();
        }
        let go = &mut |_| Continue(());
        let table = [
            (Op::And, &ra & &rb, ca.and(&cb)),
            (Op::Or, &ra | &rb, ca.or(&cb)),
            (Op::Xor, &ra ^ &rb, ca.xor(&cb)),
            (Op::AndNot, &ra - &rb, ca.andnot(&cb)),
        ];
        for (op, roaring, croaring) in table {
            let result = a.combine(op, &b, go).unwrap();
            result.check_invariants();
            assert_eq!(result.len(), u128::from(roaring.len()));
            assert_eq!(result.len(), u128::from(croaring.cardinality()));
            assert!(result.iter().eq(roaring.iter().map(u64::from)));
            assert!(result.iter().eq(croaring.iter().map(u64::from)));
            for _ in 0..50 {
                let x = rng.below(1 << 21) as u32;
                assert_eq!(result.contains(u64::from(x)), croaring.contains(x));
                assert_eq!(result.count_range(0, u64::from(x)), u128::from(croaring.rank(x)));
                assert_eq!(result.nth(u64::from(x)), croaring.select(x).map(u64::from));
            }
        }
        assert_eq!(a.jaccard(&b, go).flatten(), Some(ca.jaccard_index(&cb)));
    }
}

#[test]
fn signed_keys_keep_the_order() {
    let numbers = [i64::MIN, i64::MIN + 1, -70_000, -1, 0, 1, 65_536, i64::MAX];
    let ints: Ints = numbers.iter().map(|&n| signed::key(n)).collect();
    assert!(ints.iter().map(signed::value).eq(numbers));
}

#[test]
fn chunks_with_few_numbers_share_a_leaf_until_they_are_many() {
    let mut rng = Rng::new(11);
    // One slot of sixteen chunks, alone or beside another; more numbers each time than one leaf holds.
    for others in [0u64, 2_000] {
        let base = 7 << bins::SPAN;
        let list: BTreeSet<u64> = (0..1_500).map(|_| base + rng.below(1 << bins::SPAN)).collect();
        let far = (0..others).map(|i| (1 << 40) + i * 3);
        let mut ints: Ints = far.clone().collect();
        let mut forms = BTreeSet::new();
        let mut own = BTreeSet::new();
        let mut shuffled: Vec<u64> = list.iter().copied().collect();
        shuffled.sort_by_key(|x| stdx::hash::hash_u64(*x));
        let mut look = |ints: &Ints, own: &BTreeSet<u64>, forms: &mut BTreeSet<bool>| {
            ints.check_invariants();
            let statistics = ints.statistics();
            forms.insert(statistics.sparse == 1 && own.len() > 127);
            assert!(ints.iter().eq(own.iter().copied().chain(far.clone())));
            let x = base + rng.below(1 << bins::SPAN);
            assert_eq!(ints.rank(x), own.range(..x).count() as u64);
            assert!(ints.iter_from(x).eq(own.range(x..).copied().chain(far.clone())));
            assert_eq!(ints.next_absent(x), (x..).find(|x| !own.contains(x)));
            own.iter().enumerate().for_each(|(rank, x)| assert_eq!(ints.nth(rank as u64), Some(*x)));
        };
        for (i, &x) in shuffled.iter().enumerate() {
            assert!(ints.insert(x) && !ints.insert(x) && own.insert(x));
            if i % 50 == 0 {
                look(&ints, &own, &mut forms);
            }
        }
        let (full, mut clones) = (ints.clone(), Vec::new());
        for (i, x) in shuffled.iter().enumerate() {
            assert!(ints.remove(*x) && !ints.remove(*x) && own.remove(x));
            if i % 50 == 0 {
                look(&ints, &own, &mut forms);
                clones.push((ints.clone(), own.clone()));
            }
        }
        assert_eq!(forms.len(), 2, "both as one leaf and as a branch");
        assert!(full.iter().take(list.len()).eq(list.iter().copied()));
        clones.iter().for_each(|(ints, own)| look(ints, own, &mut forms));
    }
}

#[test]
fn leaves_of_sixteen_chunks_are_combined_with_all_others() {
    let mut rng = Rng::new(12);
    let base = 5 << bins::SPAN;
    let some = |rng: &mut Rng, count: u64, bits: u32| -> BTreeSet<u64> {
        (0..count).map(|_| base + (rng.below(1 << bits) & !1)).collect()
    };
    // In one leaf, in one of its chunks, in a branch of arrays, few, and beyond the slot.
    let shapes = [
        (20, 100),
        (20, 300),
        (20, 600),
        (20, 900),
        (20, 2_000),
        (16, 90),
        (16, 5_000),
        (20, 10),
        (22, 700),
        (48, 300),
    ];
    let mut lists: Vec<BTreeSet<u64>> =
        shapes.iter().map(|&(bits, count)| some(&mut rng, count, bits)).collect();
    // Parts of others, and others with a little more.
    lists.push(lists[1].iter().copied().filter(|x| x % 3 == 0).collect());
    lists.push(lists[2].iter().copied().filter(|x| x % 29 == 0).collect());
    lists.push(lists[1].union(&lists[0]).copied().collect());
    lists.push(lists[2].iter().map(|x| x | 1).collect());
    let sets: Vec<Ints> = lists.iter().map(|list| list.iter().copied().collect()).collect();
    let go = &mut |_| Continue(());
    for (a_list, a) in lists.iter().zip(&sets) {
        for (b_list, b) in lists.iter().zip(&sets) {
            let table: [(Op, Vec<u64>); 4] = [
                (Op::And, a_list.intersection(b_list).copied().collect()),
                (Op::Or, a_list.union(b_list).copied().collect()),
                (Op::Xor, a_list.symmetric_difference(b_list).copied().collect()),
                (Op::AndNot, a_list.difference(b_list).copied().collect()),
            ];
            for (op, expected) in table {
                let result = a.combine(op, b, go).unwrap();
                result.check_invariants();
                let unchanged = op == Op::AndNot && expected.len() == a_list.len() && a_list.len() < 4000;
                assert!(!unchanged || result.ptr_eq(a), "what loses nothing is shared");
                assert!(result.iter().eq(expected), "{op:?}");
            }
            assert_eq!(a.count_common(b, go), Some(a_list.intersection(b_list).count() as u128));
        }
        // Ranges that begin or end inside the leaf, or cover it.
        for (first, last) in
            [(base + 70_000, base + 200_000), (base - 5, base + 500_000), (base, base + (1 << 20) - 1)]
        {
            let (mut set, mut clear, mut flip) = (a.clone(), a.clone(), a.clone());
            set.insert_range(first, last);
            clear.remove_range(first, last);
            flip.flip_range(first, last);
            [&set, &clear, &flip].iter().for_each(|ints| ints.check_invariants());
            let inside = a_list.range(first..=last).count() as u128;
            let (len, width) = (a_list.len() as u128, u128::from(last - first) + 1);
            assert_eq!(
                [set.len(), clear.len(), flip.len()],
                [len - inside + width, len - inside, len + width - 2 * inside]
            );
            assert!(clear.iter().eq(a_list.iter().copied().filter(|x| !(first..=last).contains(x))));
            flip.flip_range(first, last);
            assert!(flip == *a);
        }
    }
}
