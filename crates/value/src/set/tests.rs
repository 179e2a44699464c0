//! Sets against `BTreeSet`, through all forms, with clones.

use super::algebra::{self, diff_answer, inter_answer};
use super::*;
use crate::testing::{Rng, rounds};
use std::collections::BTreeSet;
use std::ops::ControlFlow::{self, Break, Continue};

type Model = BTreeSet<Vec<u8>>;

/// Elements of one of several sorts, so that leaves of every width and mixtures occur.
fn element(rng: &mut Rng, sort: u64, range: u64) -> Vec<u8> {
    match sort {
        0 => rng.below(range).to_string().into_bytes(),
        1 => (rng.below(range) as i64 - range as i64 / 2).wrapping_mul(1 << 33).to_string().into_bytes(),
        2 => rng.text(range, 0),
        3 => rng.text(range, 900),
        _ => {
            let sort = rng.below(4);
            element(rng, sort, range)
        }
    }
}

fn compare(set: &Set, model: &Model) {
    set.check_invariants();
    assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
    let all: Vec<Vec<u8>> = set.iter().map(|elem| elem.to_vec()).collect();
    assert_eq!(all.iter().cloned().collect::<Model>(), *model);
    assert!(all.iter().all(|text| set.contains(text)));
    let middle = all.len() / 2;
    assert!(set.iter_from(middle).map(|elem| elem.to_vec()).eq(all[middle..].iter().cloned()));
    assert_eq!(set.nth(middle).map(|elem| elem.to_vec()), all.get(middle).cloned());
    let mut scanned = Model::new();
    let mut cursor = 0;
    loop {
        cursor = set.scan(cursor, 7, &mut |elem| {
            scanned.insert(elem.to_vec());
        });
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(scanned, *model);
    if set.encoding() == Enc::IntSet {
        let numbers: Vec<i64> =
            set.iter().map(|e| if let Elem::Int(n) = e { n } else { panic!("{e:?}") }).collect();
        assert!(numbers.is_sorted());
    }
}

#[test]
fn a_set_agrees_with_the_model_through_all_its_forms() {
    for seed in 0..rounds(60) {
        let mut rng = Rng::new(seed);
        let (sort, range) = (seed % 5, [30, 300, 1500][(seed / 5 % 3) as usize]);
        let (mut set, mut model) = (Set::new(), Model::new());
        let mut clones: Vec<(Set, Model)> = Vec::new();
        let mut growing = true;
        for _ in 0..3000 {
            // Now and then an element of another sort changes the width of a leaf of integers.
            let sort = if rng.below(300) == 0 { 4 } else { sort };
            let text = element(&mut rng, sort, range);
            match rng.below(20) {
                0 if !set.is_empty() => {
                    let rank = rng.below(set.len() as u64) as usize;
                    let text = set.remove_nth(rank).unwrap();
                    assert!(model.remove(&text));
                }
                n if n < if growing { 14 } else { 6 } => assert_eq!(set.insert(&text), model.insert(text)),
                _ => assert_eq!(set.remove(&text), model.remove(&text)),
            }
            match rng.below(200) {
                0 => clones.push((set.clone(), model.clone())),
                1 if !clones.is_empty() => {
                    let (set, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
                    compare(&set, &model);
                }
                2 => growing = !growing,
                3 => compare(&set, &model),
                4 if !clones.is_empty() => {
                    (set, model) = clones.swap_remove(rng.below(clones.len() as u64) as usize);
                }
                _ => {}
            }
        }
        compare(&set, &model);
        clones.iter().for_each(|(set, model)| compare(set, model));
    }
}

#[test]
fn algebra_agrees_with_the_model_for_sets_of_any_size_and_kinship() {
    for seed in 0..rounds(60) {
        let mut rng = Rng::new(seed);
        let mut sets: Vec<(Set, Model)> = Vec::new();
        for _ in 0..1 + rng.below(if seed % 4 == 0 { 40 } else { 3 }) {
            // A new set, or a changed clone of an earlier one, which shares nodes with it.
            let (mut set, mut model) = match sets.last() {
                Some((set, model)) if rng.below(2) == 0 => (set.clone(), model.clone()),
                _ => (Set::new(), Model::new()),
            };
            let range = [20, 200, 3000][rng.below(3) as usize];
            let sort = rng.below(5);
            for _ in 0..rng.below(range) {
                let text = element(&mut rng, sort, range);
                if rng.below(4) == 0 {
                    set.remove(&text);
                    model.remove(&text);
                } else {
                    set.insert(&text);
                    model.insert(text);
                }
            }
            sets.push((set, model));
        }
        let handles: Vec<&Set> = sets.iter().map(|(set, _)| set).collect();
        let models: Vec<&Model> = sets.iter().map(|(_, model)| model).collect();
        let all = |want: bool| -> Model {
            let (first, others) = models.split_first().unwrap();
            first.iter().filter(|t| others.iter().all(|o| o.contains(*t) == want)).cloned().collect()
        };
        let (inter, diff) = (all(true), all(false));
        let union: Model = models.iter().flat_map(|model| model.iter().cloned()).collect();
        let go = &mut |_| Continue(());
        compare(&Set::intersection(&handles, go).unwrap(), &inter);
        compare(&Set::difference(handles[0], &handles[1..], go).unwrap(), &diff);
        compare(&Set::remainder(handles[0], &handles[1..], go).unwrap(), &diff);
        compare(&Set::union(&handles, go).unwrap(), &union);

        let mut out = Vec::new();
        assert_eq!(
            algebra::union(&handles, go, &mut |e| {
                out.push(e.to_vec());
                Continue(())
            }),
            Continue(())
        );
        assert_eq!(out.len(), union.len());
        assert_eq!(out.drain(..).collect::<Model>(), union);
        let done = algebra::diff(handles[0], &handles[1..], go, &mut |e| {
            out.push(e.to_vec());
            Continue(())
        });
        assert_eq!((done, out.len()), (Continue(()), diff.len()));
        assert_eq!(out.drain(..).collect::<Model>(), diff);
        assert_eq!(
            algebra::inter(&handles, go, &mut |e| {
                out.push(e.to_vec());
                Continue(())
            }),
            Continue(())
        );
        assert_eq!(out.len(), inter.len());
        assert_eq!(out.drain(..).collect::<Model>(), inter);

        let first = handles[0];
        compare_answer(diff_answer(first, &handles[1..], go), &diff, &mut rng);
        compare_answer(inter_answer(first, &handles[1..], go), &inter, &mut rng);
    }
}

/// The work on thousands of small sets grows with their elements, not with pairs of them.
#[test]
fn very_many_sets_are_no_more_work_than_their_elements() {
    let number = |i: u64| i.to_string().into_bytes();
    let text = |i: u64| format!("text {i}").into_bytes();
    for name in [number, text] {
        let sets: Vec<Set> = (0..1000u64)
            .map(|i| {
                let mut set = Set::new();
                (0..20).for_each(|n| _ = set.insert(&name(i * 15 + n)));
                set
            })
            .collect();
        let mut first = Set::new();
        (0..5_000).for_each(|i| _ = first.insert(&name(i)));
        let handles: Vec<&Set> = sets.iter().collect();
        let mut steps = 0;
        let mut count = |n: usize| {
            steps += n;
            Continue(())
        };
        let union = Set::union(&handles, &mut count).unwrap();
        let rest = Set::difference(&first, &handles, &mut count).unwrap();
        assert!(
            algebra::are_many(&first, &handles) && !algebra::are_many(&handles[0].clone(), &handles[..4])
        );
        assert_eq!((union.len(), rest.len()), (999 * 15 + 20, 0));
        assert!(steps < 200_000, "{steps}");
    }
}

/// Takes an answer in pieces.
/// Takes some elements, and with them the integers that come together.
struct Few<'t> {
    taken: &'t mut Vec<Vec<u8>>,
    left: usize,
}

impl<'a> algebra::Taker<'a> for Few<'_> {
    fn take(&mut self, elem: Elem<'a>) -> ControlFlow<()> {
        self.taken.push(elem.to_vec());
        self.left = self.left.saturating_sub(1);
        if self.left > 0 { Continue(()) } else { Break(()) }
    }

    fn take_ints(&mut self, ints: &[i64]) -> ControlFlow<()> {
        self.taken.extend(ints.iter().map(|n| n.to_string().into_bytes()));
        self.left = self.left.saturating_sub(ints.len());
        if self.left > 0 { Continue(()) } else { Break(()) }
    }
}

fn compare_answer(answer: Option<algebra::Answer>, expected: &Model, rng: &mut Rng) {
    let mut answer = answer.unwrap();
    assert_eq!((answer.len(), answer.is_empty()), (expected.len(), expected.is_empty()));
    let mut taken = Vec::new();
    loop {
        let left = 1 + rng.below(300) as usize;
        if !answer.take(&mut Few { taken: &mut taken, left }) {
            break;
        }
    }
    assert_eq!(taken.len(), expected.len());
    assert_eq!(taken.into_iter().collect::<Model>(), *expected);
}

#[test]
fn large_sets_of_scattered_integers_are_combined_whatever_their_sizes() {
    let mut rng = Rng::new(11);
    let sizes = [rounds(700), rounds(3_000), rounds(20_000)];
    for bits in [64, 32, 23] {
        let numbers: Vec<i64> = (0..sizes[2]).map(|_| rng.next() as i64 >> (64 - bits)).collect();
        // Each begins elsewhere in the same numbers, has texts beside them, and lacks some.
        let sets: Vec<(Set, Model)> = (0..6)
            .map(|i| {
                let len = sizes[i % 3] as usize;
                let integers = numbers.iter().skip(i * 150).take(len).map(i64::to_string);
                let model: Model =
                    integers.chain((0..i).map(|n| format!("text {n}"))).map(String::into_bytes).collect();
                (model.iter().collect(), model)
            })
            .collect();
        for (first, model) in &sets {
            for others in [&sets[..1], &sets[1..3], &sets[3..]] {
                let handles: Vec<&Set> = others.iter().map(|(set, _)| set).collect();
                let mut diff = model.clone();
                diff.retain(|text| !others.iter().any(|(_, other)| other.contains(text)));
                let mut inter = model.clone();
                inter.retain(|text| others.iter().all(|(_, other)| other.contains(text)));
                let go = &mut |_| Continue(());
                let mut out = Vec::new();
                let _ = algebra::diff(first, &handles, go, &mut |e| {
                    out.push(e.to_vec());
                    Continue(())
                });
                assert_eq!(out.len(), diff.len());
                assert_eq!(out.drain(..).collect::<Model>(), diff);
                let all: Vec<&Set> = handles.iter().copied().chain([first]).collect();
                let _ = algebra::inter(&all, go, &mut |e| {
                    out.push(e.to_vec());
                    Continue(())
                });
                assert_eq!(out.len(), inter.len());
                assert_eq!(out.drain(..).collect::<Model>(), inter);
                compare_answer(diff_answer(first, &handles, go), &diff, &mut rng);
                compare_answer(inter_answer(first, &handles, go), &inter, &mut rng);
            }
        }
    }
}

#[test]
fn algebra_stops_when_told_to() {
    let a: Set = (0..10_000).map(|n| format!("{n}")).collect();
    let b: Set = (5_000..15_000).map(|n| format!("{n}")).collect();
    let mut work = 0;
    let mut pause = |n| {
        work += n;
        if work > 500 { Break(()) } else { Continue(()) }
    };
    assert_eq!(algebra::inter(&[&a, &b], &mut pause, &mut |_| Continue(())), Break(()));
    assert!(work < 1000);
    let mut left = 3;
    let each = &mut |_: Elem<'_>| {
        left -= 1;
        if left == 0 { Break(()) } else { Continue(()) }
    };
    assert_eq!(algebra::diff(&a, &[&b], &mut |_| Continue(()), each), Break(()));
    assert_eq!(left, 0);
    assert!(diff_answer(&a, &[&b], &mut |_| Break(())).is_none());
    assert!(Set::union(&[&a, &b], &mut |_| Break(())).is_none());
}

#[test]
fn encodings_follow_redis() {
    let numbers = |n: u32| (0..n).map(|i| i.to_string()).collect::<Set>();
    let mut set = numbers(512);
    assert_eq!(set.encoding(), Enc::IntSet);
    set.insert(b"512");
    assert_eq!(set.encoding(), Enc::HashTable);
    let mut set = numbers(3);
    set.insert(b"x");
    assert_eq!(set.encoding(), Enc::ListPack);
    set.remove(b"x");
    assert_eq!(set.encoding(), Enc::ListPack);
    (3..129).for_each(|i| assert!(set.insert(i.to_string().as_bytes())));
    assert_eq!(set.encoding(), Enc::HashTable);
    let mut set = numbers(200);
    set.insert(b"x");
    assert_eq!(set.encoding(), Enc::HashTable);
    let mut set: Set = [vec![b'a'; 64]].into_iter().collect();
    assert_eq!(set.encoding(), Enc::ListPack);
    set.insert(&[b'a'; 65]);
    assert_eq!(set.encoding(), Enc::HashTable);
    set.remove(&[b'a'; 65]);
    assert_eq!(set.encoding(), Enc::HashTable);
}

#[test]
fn long_elements_are_shared_not_copied() {
    let long = vec![b'x'; 1 << 20];
    let mut set: Set = [b"a".as_slice(), &long].into_iter().collect();
    let clone = set.clone();
    set.insert(b"b");
    let address = |set: &Set| set.iter().find(|e| e.len() > 9).map(|e| e.with(|text| text.as_ptr()));
    assert_eq!(address(&set), address(&clone));
    assert!(set.mem_bytes() > 1 << 20);
    drop(clone);
    assert!(set.remove(&long) && set.mem_bytes() < 200);
}
