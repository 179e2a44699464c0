use super::*;
use proptest::prelude::*;

fn texts(list: &List) -> Vec<Vec<u8>> {
    list.iter().map(|elem| elem.to_vec()).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Push(bool, Vec<u8>, usize),
    Pop(bool, usize),
    Insert(usize, Vec<u8>),
    Set(usize, Vec<u8>),
    Remove(usize),
    RemoveRange(usize, usize),
    Cut(usize),
    AppendOld,
    AppendNew(usize),
    Rebuild,
    Snapshot,
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => any::<i64>().prop_flat_map(|n| (0u32..64).prop_map(move |s| (n >> s).to_string().into_bytes())),
        6 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 480..700),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<bool>(), text(), 1usize..400).prop_map(|(f, t, n)| Op::Push(f, t, n)),
        3 => (any::<bool>(), 1usize..300).prop_map(|(f, n)| Op::Pop(f, n)),
        3 => (any::<usize>(), text()).prop_map(|(i, t)| Op::Insert(i, t)),
        2 => (any::<usize>(), text()).prop_map(|(i, t)| Op::Set(i, t)),
        2 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
        2 => any::<usize>().prop_map(Op::Cut),
        1 => Just(Op::AppendOld),
        2 => (0usize..20_000).prop_map(Op::AppendNew),
        1 => Just(Op::Rebuild),
        2 => Just(Op::Snapshot),
    ]
}

fn apply(list: &mut List, model: &mut Vec<Vec<u8>>, old: &[(List, Vec<Vec<u8>>)], op: Op) {
    match op {
        Op::Push(true, t, n) => {
            for i in 0..n {
                let t = if i % 3 == 0 { t.clone() } else { format!("{i}-element").into_bytes() };
                list.push_front(&t);
                model.insert(0, t);
            }
        }
        Op::Push(false, t, n) => {
            for i in 0..n {
                let t = if i % 3 == 0 { t.clone() } else { i.to_string().into_bytes() };
                list.push_back(&t);
                model.push(t);
            }
        }
        Op::Pop(true, n) => {
            for _ in 0..n {
                assert_eq!(list.pop_front(), (!model.is_empty()).then(|| model.remove(0)));
            }
        }
        Op::Pop(false, n) => (0..n).for_each(|_| assert_eq!(list.pop_back(), model.pop())),
        Op::Insert(i, t) => {
            let i = i % (model.len() + 1);
            assert!(list.insert(i, &t));
            model.insert(i, t);
        }
        Op::Set(i, t) => {
            assert!(!list.set(model.len(), &t));
            if !model.is_empty() {
                let i = i % model.len();
                assert!(list.set(i, &t));
                model[i] = t;
            }
        }
        Op::Remove(i) => {
            if !model.is_empty() {
                let i = i % model.len();
                assert_eq!(list.remove(i), Some(model.remove(i)));
            }
        }
        Op::RemoveRange(a, b) => {
            let a = a % (model.len() + 1);
            let b = a + b % (model.len() + 1 - a) / if b % 2 == 0 { 10 } else { 1 };
            list.remove_range(a..b);
            model.drain(a..b);
        }
        Op::Cut(at) => {
            let at = at % (model.len() + 1);
            let mut right = list.split_off(at);
            right.check_invariants();
            list.check_invariants();
            let mut right_model = model.split_off(at);
            right.append(std::mem::take(list));
            right_model.append(model);
            (*list, *model) = (right, right_model);
        }
        Op::AppendOld => {
            if let Some((other, other_model)) = old.last().filter(|_| model.len() < 100_000) {
                list.append(other.clone());
                model.extend_from_slice(other_model);
            }
        }
        Op::AppendNew(n) => {
            let new: Vec<Vec<u8>> = (0..n).map(|i| format!("new:{}", i * 7919).into_bytes()).collect();
            let other: List = new.iter().collect();
            other.check_invariants();
            list.append(other);
            model.extend(new);
        }
        Op::Rebuild => *list = model.iter().collect(),
        Op::Snapshot => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_list_behaves_like_a_vector_and_its_clones_never_change(ops in prop::collection::vec(op(), 1..40)) {
        let (mut list, mut model) = (List::new(), Vec::new());
        let mut old = vec![(list.clone(), model.clone())];
        for op in ops {
            let snapshot = matches!(op, Op::Snapshot);
            apply(&mut list, &mut model, &old, op);
            list.check_invariants();
            prop_assert_eq!(list.len(), model.len());
            prop_assert_eq!(list.is_empty(), model.is_empty());
            if snapshot {
                old.push((list.clone(), model.clone()));
            }
        }
        old.push((list, model));
        for (list, model) in &old {
            list.check_invariants();
            prop_assert_eq!(&texts(list), model);
            for i in (0..model.len()).step_by(model.len() / 20 + 1) {
                prop_assert_eq!(&list.get(i).unwrap().to_vec(), &model[i]);
                prop_assert!(list.iter_from(i).map(|e| e.to_vec()).take(300).eq(model[i..].iter().take(300).cloned()));
                prop_assert!(list.iter_rev_from(i).map(|e| e.to_vec()).take(300)
                    .eq(model[..=i].iter().rev().take(300).cloned()));
            }
            prop_assert_eq!(list.iter_rev().count(), model.len());
            prop_assert_eq!(list.get(model.len()), None);
        }
    }
}

#[test]
fn integers_are_stored_shortly_and_come_back() {
    let mut n = 1i64;
    let mut all = vec![0, i64::MAX, i64::MIN];
    while n != 0 {
        all.extend([n - 1, n, n + 1, -n, -n - 1, 1 - n].map(|n: i64| n));
        n = n.checked_mul(2).unwrap_or(0);
    }
    for n in all {
        assert_eq!(short_int(&n.to_le_bytes()[..short_len(n)]), n);
    }
    assert_eq!([0, 1, 127, 128, -128, -129, 32767, i64::MIN].map(short_len), [0, 1, 1, 2, 1, 2, 2, 8]);
}

/// OBJECT ENCODING as Redis 7.2 answers it with list-max-listpack-size -2.
#[test]
fn a_list_becomes_a_quicklist_over_8_kb_and_goes_back_under_4_kb() {
    let mut list = List::new();
    assert_eq!(list.encoding(), Enc::ListPack);
    // 7 bytes of frame and 100 per element: 81 of them are 8107 bytes.
    for i in 0..81 {
        list.push_back(&[b'a' + (i % 20) as u8; 97]);
        assert_eq!(list.encoding(), Enc::ListPack, "{i}");
    }
    list.push_back(&[b'x'; 85]);
    assert_eq!(list.encoding(), Enc::ListPack);
    list.push_back(&[b'x'; 4]);
    assert_eq!(list.encoding(), Enc::QuickList);
    list.remove_range(0..40);
    assert_eq!((list.len(), list.encoding()), (43, Enc::QuickList));
    list.remove_range(0..3);
    assert_eq!(list.encoding(), Enc::ListPack);
    let mut one = List::new();
    one.push_back(&[b'x'; 9000]);
    assert_eq!(one.encoding(), Enc::QuickList);
    // All elements of one command are checked at once, before the first, without the listpack's overhead for
    // each.
    let all = [&b"x"[..]; 3000];
    let (mut one, mut two, mut three) = (List::new(), List::new(), List::new());
    one.push_each_back(all.into_iter());
    two.push_each_front(std::iter::repeat_n(&b"xy"[..], 5000));
    all.iter().for_each(|text| three.push_back(text));
    assert_eq!([&one, &two, &three].map(List::encoding), [Enc::ListPack, Enc::QuickList, Enc::QuickList]);
    one.push_each_back([&b"y"[..]].into_iter());
    assert_eq!(one.encoding(), Enc::QuickList);
    let mut one = List::new();
    one.push_back(&[b'x'; 9000]);
    assert!(one.mem_bytes() > 9000 && one.mem_bytes() < 9500);
}

#[test]
fn a_queue_of_constant_length_keeps_its_shape() {
    let mut list: List = (0..1000).map(|i| format!("job:{i:08}")).collect();
    let before = list.shape();
    for i in 0..100_000 {
        list.push_back(format!("job:{i:08}").as_bytes());
        list.remove_range(0..1);
    }
    list.check_invariants();
    let after = list.shape();
    assert!(after.0 <= before.0 + 2 && after.2 <= before.2 * 3 / 2, "{before:?} {after:?}");
}

/// Ends are changed without a descent while nothing is shared. So clone, go on with either, and drop the
/// other.
#[test]
fn queues_whose_clones_come_and_go_behave_like_a_deque() {
    use crate::testing::{Rng, rounds};
    use std::collections::VecDeque;

    type Model = VecDeque<Vec<u8>>;
    for seed in 0..rounds(12) {
        let mut rng = Rng::new(seed);
        let (mut list, mut model) = (List::new(), Model::new());
        let mut others: Vec<(List, Model)> = Vec::new();
        let long = [0, 0, 700][seed as usize % 3];
        let mut growing = true;
        for step in 0..6000 {
            let front = rng.below(if seed % 2 == 0 { 2 } else { 9 }) == 0;
            growing &= model.len() < 6000;
            match (rng.below(10) < if growing { 8 } else { 2 }, front) {
                (true, true) => {
                    model.push_front(rng.text(5000, long));
                    list.push_front(&model[0]);
                }
                (true, false) => {
                    model.push_back(rng.text(5000, long));
                    list.push_back(&model[model.len() - 1]);
                }
                (false, true) => assert_eq!(list.pop_front(), model.pop_front()),
                (false, false) => assert_eq!(list.pop_back(), model.pop_back()),
            }
            assert_eq!(list.get(0).map(|e| e.to_vec()).as_ref(), model.front());
            assert_eq!(list.get(list.len().wrapping_sub(1)).map(|e| e.to_vec()).as_ref(), model.back());
            match rng.below(150) {
                0 => others.push((list.clone(), model.clone())),
                1 if !others.is_empty() => {
                    let i = rng.below(others.len() as u64) as usize;
                    let other = &mut others[i];
                    std::mem::swap(&mut list, &mut other.0);
                    std::mem::swap(&mut model, &mut other.1);
                }
                2 if !others.is_empty() => {
                    let (list, model) = others.swap_remove(rng.below(others.len() as u64) as usize);
                    assert!(texts(&list).iter().eq(model.iter()));
                }
                3 => {
                    let i = rng.below(model.len() as u64 + 1) as usize;
                    assert!(list.insert(i, b"middle"));
                    model.insert(i, b"middle".to_vec());
                }
                4 if model.len() < 2000 => {
                    let keep = rng.below(model.len() as u64 + 1) as usize;
                    list.append(list.clone().split_off(keep));
                    model.extend(model.clone().into_iter().skip(keep));
                }
                5 => {
                    let keep = model.len().saturating_sub(rng.below(8) as usize);
                    list.remove_range(keep..usize::MAX);
                    model.truncate(keep);
                }
                6 => growing = model.len() < 4000 && !growing,
                7 => list.check_invariants(),
                _ => {}
            }
            if step % 1000 == 0 {
                list.check_invariants();
                assert!(texts(&list).iter().eq(model.iter()));
            }
        }
        while !model.is_empty() {
            assert_eq!(list.pop_front(), model.pop_front());
        }
        assert!(list.is_empty());
        others.iter().for_each(|(list, model)| assert!(texts(list).iter().eq(model.iter())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// LSCAN relies on this: the name of an element is its base plus its index.
    #[test]
    fn what_comes_and_goes_at_the_ends_changes_no_elements_name(
        steps in prop::collection::vec((0u8..6, 1usize..2000, any::<bool>()), 1..40),
    ) {
        let mut list: List = (0..6000).map(|i| format!("element {i}")).collect();
        prop_assert!(!list.is_small());
        let mut names: std::collections::VecDeque<i64> = (0..6000).collect();
        let mut held = Vec::new();
        for (what, n, snapshot) in steps {
            if snapshot {
                held = vec![(list.clone(), list.base())];
            }
            let n = n.min(list.len().saturating_sub(1));
            match what {
                0 => for _ in 0..n {
                    list.push_front(b"front");
                    names.push_front(names[0] - 1);
                },
                1 => for _ in 0..n {
                    list.push_back(b"back");
                    names.push_back(names[names.len() - 1] + 1);
                },
                2 => for _ in 0..n {
                    list.pop_front();
                    names.pop_front();
                },
                3 => for _ in 0..n {
                    list.pop_back();
                    names.pop_back();
                },
                4 => {
                    list.remove_range(0..n);
                    names.drain(..n);
                }
                _ => {
                    list.remove_range(list.len() - n..list.len());
                    names.truncate(names.len() - n);
                }
            }
            list.check_invariants();
            prop_assert_eq!(list.base(), names[0]);
            prop_assert_eq!(list.len(), names.len());
            prop_assert!(!list.is_small());
            for (old, base) in &held {
                prop_assert_eq!(old.base(), *base);
            }
        }
        // A long element replaces a short one, the only one in the list.
        list.remove_range(1..list.len());
        let base = list.base();
        list.set(0, &[b'x'; 2100]);
        prop_assert_eq!(list.base(), base);
        list.check_invariants();
    }
}
