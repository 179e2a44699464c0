use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The plainest sorted set: scores by member, sorted when asked.
type Model = BTreeMap<Vec<u8>, f64>;

fn sorted(model: &Model) -> Vec<(Vec<u8>, f64)> {
    let mut all: Vec<(Vec<u8>, f64)> = model.iter().map(|(m, s)| (m.clone(), *s)).collect();
    all.sort_by(|a, b| a.1.partial_cmp(&b.1).unwrap().then_with(|| a.0.cmp(&b.0)));
    all
}

fn check(set: &ZSet, model: &Model) {
    set.check_invariants();
    let sorted = sorted(model);
    assert_eq!(set.len(), sorted.len());
    assert_eq!(set.is_empty(), sorted.is_empty());
    assert!(set.iter().eq(sorted.iter().map(|(m, s)| (&m[..], *s))));
    for (rank, (member, score)) in sorted.iter().enumerate().step_by(sorted.len() / 50 + 1) {
        assert_eq!(set.score(member), Some(*score));
        assert_eq!(set.rank(member), Some(rank));
        assert_eq!(set.nth(rank), Some((&member[..], *score)));
        let back = set.iter_rev_from(rank).take(200);
        assert!(back.eq(sorted[..=rank].iter().rev().take(200).map(|(m, s)| (&m[..], *s))));
        for bound in [ScoreBound::Incl(*score), ScoreBound::Excl(*score), ScoreBound::Incl(*score + 0.25)] {
            let lower = sorted.partition_point(|(_, s)| match bound {
                ScoreBound::Incl(b) => *s < b,
                ScoreBound::Excl(b) => *s <= b,
            });
            assert_eq!(set.rank_lower(&bound), lower);
            assert_eq!(set.rank_upper(&bound.flipped()), lower);
        }
    }
    let mut seen = BTreeSet::new();
    let mut cursor = 0;
    loop {
        cursor = set.scan(cursor, 10, &mut |member, score| {
            assert_eq!(model.get(member), Some(&score));
            seen.insert(member.to_vec());
        });
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), model.len());
}

#[derive(Clone, Debug)]
enum Op {
    Add(Vec<u8>, f64),
    AddMany(u32, u32, u8),
    Nudge(u32, f64),
    Remove(u32),
    RemoveMany(u32, u32),
    RemoveRanks(usize, usize),
    Rebuild,
    Snapshot,
}

fn score() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-20i32..20).prop_map(f64::from),
        2 => any::<i64>().prop_map(|n| n as f64),
        2 => any::<f64>().prop_map(|s| if s.is_nan() { -0.0 } else { s }),
        1 => prop::sample::select(vec![f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 0.5]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let member = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..30),
        1 => prop::collection::vec(any::<u8>(), 500..560),
    ];
    prop_oneof![
        4 => (member, score()).prop_map(|(m, s)| Op::Add(m, s)),
        3 => (0u32..5000, 0u32..1500, 0u8..3).prop_map(|(a, n, how)| Op::AddMany(a, n, how)),
        3 => (0u32..5000, score()).prop_map(|(m, s)| Op::Nudge(m, s)),
        2 => (0u32..5000).prop_map(Op::Remove),
        2 => (0u32..5000, 0u32..1000).prop_map(|(a, n)| Op::RemoveMany(a, n)),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Op::RemoveRanks(a, b)),
        1 => Just(Op::Rebuild),
        2 => Just(Op::Snapshot),
    ]
}

fn name(i: u32) -> Vec<u8> {
    format!("a-member-with-a-long-prefix:{i}").into_bytes()
}

fn insert(set: &mut ZSet, model: &mut Model, member: &[u8], score: f64) {
    let old = set.insert(member, score);
    assert_eq!(old, model.get(member).copied());
    if old != Some(score) {
        model.insert(member.to_vec(), score);
    }
}

fn apply(set: &mut ZSet, model: &mut Model, op: Op) {
    match op {
        Op::Add(member, score) => insert(set, model, &member, score),
        Op::AddMany(from, n, how) => {
            for i in from..from + n {
                let score = match how {
                    0 => 0.0,
                    1 => f64::from(i),
                    _ => f64::from(i.wrapping_mul(2_654_435_761)) / 7.0,
                };
                insert(set, model, &name(i), score);
            }
        }
        Op::Nudge(i, score) => {
            for i in i..i + 20 {
                let old = model.get(&name(i)).copied().unwrap_or(score);
                insert(set, model, &name(i), old + 0.5);
                insert(set, model, &name(i), score);
            }
        }
        Op::Remove(i) => assert_eq!(set.remove(&name(i)), model.remove(&name(i))),
        Op::RemoveMany(from, n) => {
            (from..from + n).for_each(|i| assert_eq!(set.remove(&name(i)), model.remove(&name(i))));
        }
        Op::RemoveRanks(a, b) => {
            let a = a % (model.len() + 1);
            let b = a + b % (model.len() + 1 - a) / [1, 2, 20][b % 3];
            for (member, _) in &sorted(model)[a..b] {
                model.remove(member);
            }
            assert_eq!(set.remove_rank_range(a..b), b - a);
        }
        Op::Rebuild => *set = ZSet::from_sorted(sorted(model).iter().map(|(m, s)| (&m[..], *s))),
        Op::Snapshot => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_sorted_set_behaves_like_its_model_and_its_clones_never_change(ops in prop::collection::vec(op(), 1..40)) {
        let (mut set, mut model) = (ZSet::new(), Model::new());
        let mut old = Vec::new();
        for op in ops {
            if matches!(op, Op::Snapshot) {
                old.push((set.clone(), model.clone()));
            }
            apply(&mut set, &mut model, op);
            set.check_invariants();
        }
        old.push((set, model));
        old.iter().for_each(|(set, model)| check(set, model));
    }
}

#[test]
fn bounds_by_member_follow_the_bytes() {
    for n in [0u32, 50, 5000] {
        let set: ZSet = (0..n).map(|i| (format!("{i:06}"), 1.0)).collect();
        let at = |i: u32| format!("{i:06}").into_bytes();
        let (low, high) = (at(10), at(20));
        let n = n as usize;
        assert_eq!(set.ranks(&LexBound::Min, &LexBound::Max), 0..n);
        assert_eq!(set.ranks(&LexBound::Max, &LexBound::Min), n..n);
        assert_eq!(set.ranks(&LexBound::Incl(&low), &LexBound::Excl(&high)), 10.min(n)..20.min(n));
        assert_eq!(set.ranks(&LexBound::Excl(&low), &LexBound::Incl(&high)), 11.min(n)..21.min(n));
        assert_eq!(set.ranks(&LexBound::Incl(b"00001"), &LexBound::Excl(&low)), 10.min(n)..10.min(n));
        assert_eq!(set.ranks(&LexBound::Excl(&high), &LexBound::Incl(&low)), 21.min(n)..21.min(n));
    }
}

#[test]
fn zero_and_minus_zero_are_one_score() {
    let mut set = ZSet::new();
    set.insert(b"b", 0.0);
    set.insert(b"a", -0.0);
    assert_eq!(set.nth(0).map(|m| m.0), Some(&b"a"[..]));
    assert_eq!(set.insert(b"b", -0.0), Some(0.0));
    assert!(set.score(b"b").is_some_and(|s| s.is_sign_positive()));
    assert_eq!(set.ranks(&ScoreBound::Incl(-0.0), &ScoreBound::Incl(0.0)), 0..2);
}

/// OBJECT ENCODING as Redis answers it with its defaults.
#[test]
fn a_set_becomes_a_skiplist_by_length_or_by_a_long_member_and_stays_one() {
    let mut set: ZSet = (0..128).map(|i| (format!("m{i}"), f64::from(i))).collect();
    assert_eq!(set.encoding(), Enc::ListPack);
    set.insert(b"m0", 7.0);
    assert_eq!(set.encoding(), Enc::ListPack);
    set.insert(b"more", 7.0);
    assert_eq!(set.encoding(), Enc::SkipList);
    set.remove_rank_range(1..1000);
    assert_eq!((set.len(), set.encoding()), (1, Enc::SkipList));
    set.insert(b"other", 1.0);
    assert_eq!(set.encoding(), Enc::SkipList);
    let mut set = ZSet::new();
    set.insert(&[b'x'; 64], 1.0);
    assert_eq!(set.encoding(), Enc::ListPack);
    set.insert(&[b'y'; 65], 1.0);
    assert_eq!(set.encoding(), Enc::SkipList);
}

#[test]
fn a_long_removal_pauses_and_can_be_broken_off_at_each_pause() {
    let whole: ZSet = (0..3000).map(|i| (format!("m{i}"), f64::from(i % 50))).collect();
    // Few of many, most of them, all but one.
    for ranks in [10..700, 10..2700, 1..3000] {
        let work = ranks.len().min(whole.len() - ranks.len());
        let mut pauses = 0;
        let mut set = whole.clone();
        let gone = set.remove_ranks(ranks.clone(), &mut |members| {
            assert!(members <= PIECE);
            pauses += 1;
            Continue(())
        });
        assert_eq!((gone, set.len()), (Some(ranks.len()), whole.len() - ranks.len()));
        assert_eq!(pauses, if ranks.len() == work { work.div_ceil(PIECE) } else { work / PIECE });
        set.check_invariants();
        for last in 1..=pauses {
            let (mut set, mut left) = (whole.clone(), last);
            let broken = set.remove_ranks(ranks.clone(), &mut |_| {
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { Continue(()) }
            });
            assert_eq!(broken, None);
            set.check_invariants();
            assert!(set.len() <= whole.len() && set.iter().all(|(member, _)| whole.score(member).is_some()));
        }
    }
    assert_eq!(whole.len(), 3000);
}
