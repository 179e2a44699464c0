//! The checker looks for an order of the operations, each between its invocation and its return, in which
//! every reply is that of a single-threaded server.
//!
//! ```text
//!  time ──►   invoke a   invoke b   return a                return b
//!  open        {a}        {a,b}     every configuration      ...
//!                                   must have a behind it
//! ```
//!
//! It walks through the history in time (Lowe, "Testing for linearizability", the just-in-time variant of
//! Wing and Gong). It keeps every *configuration* the server may be in: a state of the model, and the
//! operations under way that have already taken place. When an operation returns, configurations without it
//! let it take place, after any others under way. Configurations where that is impossible are dropped. None
//! left: not linearizable.
//!
//! - L1: configurations are a set (that is the memoisation), so the cost grows with concurrency, not with
//!   length.
//! - L2: at equal times an invocation counts as earlier than a return: when in doubt, the two overlap.
//! - L3: an operation without a return may take place at any time after its invocation, or never.
//! - L4: a history over many keys may be cut into its projections on disjoint keys. The projection of an
//!   operation on keys of several parts is in each. A rejected part still means a rejected history, though
//!   not the reverse.
//! - L5: an operation that only looks, and may take place now, does so: any continuation without it is also
//!   possible with it. This keeps readers from multiplying the configurations.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// The expected behaviour of the server.
pub trait Model {
    type State: Clone + Eq + Hash + Debug;
    type Op: Debug;
    type Ret: Debug;

    /// The states after `op` that agree with the reply, or with any reply if it is unknown. Several if the
    /// model leaves a choice, none if the reply is impossible in this state.
    fn step(&self, state: &Self::State, op: &Self::Op, ret: Option<&Self::Ret>) -> Vec<Self::State>;

    /// True if an operation with this reply changed nothing, in any state (L5).
    fn is_look(&self, op: &Self::Op, ret: &Self::Ret) -> bool;
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Entry<O, R> {
    /// The client, for the report only.
    pub client: usize,
    pub op: O,
    /// `None` if no reply came (L3).
    pub ret: Option<R>,
    pub invoke_ns: u64,
    pub return_ns: u64,
}

/// The proof that a history was rejected.
#[derive(Debug)]
pub struct Broken<S> {
    /// Index of the entry whose reply has no explanation.
    pub at: usize,
    /// The last earlier time at which nothing was under way (except operations that never returned), and
    /// every state possible then. With the entries since, these show the contradiction.
    pub quiet_ns: u64,
    pub quiet_states: Vec<S>,
}

#[derive(Debug)]
pub enum Verdict<S> {
    Linearizable,
    Broken(Broken<S>),
    /// More configurations than the limits; the result is unknown.
    TooHard,
}

/// Most configurations examined for one return, and for a whole history.
const LIMIT: usize = 100_000;
const LIMIT_IN_ALL: usize = 2_000_000;

type Config<S> = (u64, S);

/// Checks a history. At most 64 operations may be under way at a time.
pub fn check<M: Model>(model: &M, initial: M::State, history: &[Entry<M::Op, M::Ret>]) -> Verdict<M::State> {
    let mut configs: HashSet<Config<M::State>> = HashSet::from([(0, initial.clone())]);
    let mut open: [Option<usize>; 64] = [None; 64];
    let mut quiet = (0, vec![initial]);
    let mut work = LIMIT_IN_ALL;
    for (ns, _, index) in events(history) {
        let Some(slot) = open.iter().position(|held| *held == Some(index)) else {
            let Some(free) = open.iter().position(Option::is_none) else { return Verdict::TooHard };
            open[free] = Some(index);
            continue;
        };
        configs = match returned(model, history, &open, slot, configs, &mut work) {
            Some(next) => next,
            None => return Verdict::TooHard,
        };
        if configs.is_empty() {
            let (quiet_ns, quiet_states) = quiet;
            return Verdict::Broken(Broken { at: index, quiet_ns, quiet_states });
        }
        open[slot] = None;
        if open.iter().flatten().all(|under_way| history[*under_way].ret.is_none()) {
            quiet = (ns, configs.iter().map(|(_, state)| state.clone()).collect());
        }
    }
    Verdict::Linearizable
}

/// Invocations and returns in the order of time (L2): time, 0 for an invocation or 1 for a return, index.
fn events<O, R>(history: &[Entry<O, R>]) -> Vec<(u64, u8, usize)> {
    let mut events = Vec::with_capacity(2 * history.len());
    for (index, entry) in history.iter().enumerate() {
        events.push((entry.invoke_ns, 0, index));
        if entry.ret.is_some() {
            events.push((entry.return_ns, 1, index));
        }
    }
    events.sort_unstable();
    events
}

/// The configurations in which the operation in `slot` has taken place, with its bit cleared. `None`: too
/// many.
fn returned<M: Model>(
    model: &M,
    history: &[Entry<M::Op, M::Ret>],
    open: &[Option<usize>; 64],
    slot: usize,
    configs: HashSet<Config<M::State>>,
    work: &mut usize,
) -> Option<HashSet<Config<M::State>>> {
    let mut next = HashSet::new();
    let mut seen: HashSet<Config<M::State>> = HashSet::new();
    let mut stack: Vec<Config<M::State>> = configs.into_iter().collect();
    while let Some((done, state)) = stack.pop() {
        if done >> slot & 1 == 1 {
            next.insert((done & !(1 << slot), state));
            continue;
        }
        if !seen.insert((done, state.clone())) {
            continue;
        }
        *work = work.saturating_sub(1);
        if seen.len() + next.len() > LIMIT || *work == 0 {
            return None;
        }
        let undone = |(other, index): (usize, &Option<usize>)| Some((other, (*index)?));
        let undone = open.iter().enumerate().filter_map(undone).filter(|(other, _)| done >> other & 1 == 0);
        let mut branches = Vec::new();
        for (other, index) in undone {
            let entry = &history[index];
            let after = model.step(&state, &entry.op, entry.ret.as_ref());
            if after.contains(&state) && entry.ret.as_ref().is_some_and(|ret| model.is_look(&entry.op, ret)) {
                branches = vec![(done | 1 << other, state)];
                break;
            }
            branches.extend(after.into_iter().map(|after| (done | 1 << other, after)));
        }
        stack.append(&mut branches);
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One integer.
    struct Register;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Op {
        Write(i64),
        Read,
        /// Adds one and gives the sum.
        Add,
    }

    impl Model for Register {
        type State = i64;
        type Op = Op;
        type Ret = i64;

        fn step(&self, state: &i64, op: &Op, ret: Option<&i64>) -> Vec<i64> {
            let (after, reply) = match op {
                Op::Write(n) => (*n, 0),
                Op::Read => (*state, *state),
                Op::Add => (state + 1, state + 1),
            };
            if ret.is_none_or(|ret| *ret == reply) { vec![after] } else { Vec::new() }
        }

        fn is_look(&self, op: &Op, _: &i64) -> bool {
            *op == Op::Read
        }
    }

    fn entry(op: Op, ret: Option<i64>, invoke_ns: u64, return_ns: u64) -> Entry<Op, i64> {
        Entry { client: 0, op, ret, invoke_ns, return_ns }
    }

    fn accepts(history: &[Entry<Op, i64>]) -> bool {
        match check(&Register, 0, history) {
            Verdict::Linearizable => true,
            Verdict::Broken(_) => false,
            Verdict::TooHard => panic!("too hard"),
        }
    }

    #[test]
    fn overlapping_operations_may_take_place_in_either_order() {
        let write = entry(Op::Write(1), Some(0), 0, 100);
        assert!(accepts(&[write.clone(), entry(Op::Read, Some(0), 10, 20)]));
        assert!(accepts(&[write.clone(), entry(Op::Read, Some(1), 10, 20)]));
        let one_then_none = [entry(Op::Read, Some(1), 10, 20), entry(Op::Read, Some(0), 30, 40)];
        assert!(!accepts(&[&[write][..], &one_then_none].concat()));
    }

    #[test]
    fn a_read_after_a_write_must_see_it() {
        assert!(!accepts(&[entry(Op::Write(1), Some(0), 0, 10), entry(Op::Read, Some(0), 11, 20)]));
        // Operations that meet at one instant overlap.
        assert!(accepts(&[entry(Op::Write(1), Some(0), 0, 10), entry(Op::Read, Some(0), 10, 20)]));
    }

    #[test]
    fn a_lost_update_is_rejected() {
        assert!(accepts(&[entry(Op::Add, Some(1), 0, 10), entry(Op::Add, Some(2), 0, 10)]));
        assert!(!accepts(&[entry(Op::Add, Some(1), 0, 10), entry(Op::Add, Some(1), 0, 10)]));
        assert!(!accepts(&[entry(Op::Add, Some(2), 0, 10), entry(Op::Add, Some(1), 20, 30)]));
    }

    #[test]
    fn readers_must_agree_on_the_order_of_writes() {
        let writes = [entry(Op::Write(1), Some(0), 0, 100), entry(Op::Write(2), Some(0), 0, 100)];
        let reads =
            |ns, a, b| [entry(Op::Read, Some(a), ns, ns + 1), entry(Op::Read, Some(b), ns + 2, ns + 3)];
        assert!(accepts(&[&writes[..], &reads(10, 1, 2), &[entry(Op::Read, Some(2), 50, 51)]].concat()));
        assert!(!accepts(&[&writes[..], &reads(10, 1, 2), &reads(50, 2, 1)].concat()));
    }

    #[test]
    fn an_operation_without_a_reply_happens_once_at_most() {
        let write = entry(Op::Write(1), None, 0, u64::MAX);
        assert!(accepts(&[write.clone(), entry(Op::Read, Some(0), 10, 20)]));
        assert!(accepts(&[
            write.clone(),
            entry(Op::Read, Some(0), 10, 20),
            entry(Op::Read, Some(1), 30, 40)
        ]));
        assert!(!accepts(&[
            write.clone(),
            entry(Op::Read, Some(1), 10, 20),
            entry(Op::Read, Some(0), 30, 40)
        ]));
        let add = entry(Op::Add, None, 0, u64::MAX);
        assert!(!accepts(&[add, entry(Op::Read, Some(2), 10, 20)]));
    }

    #[test]
    fn the_report_begins_where_nothing_was_under_way() {
        let history = [
            entry(Op::Write(1), Some(0), 0, 10),
            entry(Op::Write(2), Some(0), 5, 15),
            entry(Op::Read, Some(2), 20, 30),
            entry(Op::Read, Some(1), 40, 50),
        ];
        let Verdict::Broken(broken) = check(&Register, 0, &history) else { panic!("accepted") };
        assert_eq!((broken.at, broken.quiet_ns, &broken.quiet_states[..]), (3, 30, &[2][..]));
    }

    /// All orders of a few operations, tried one by one.
    fn brute(history: &[Entry<Op, i64>], state: i64, done: u32) -> bool {
        let todo = |i: &usize| done >> i & 1 == 0;
        if !(0..history.len()).any(|i| todo(&i) && history[i].ret.is_some()) {
            return true;
        }
        let returns = (0..history.len()).filter(todo).filter(|i| history[*i].ret.is_some());
        let first = returns.map(|i| history[i].return_ns).min().unwrap_or(u64::MAX);
        (0..history.len()).filter(todo).filter(|i| history[*i].invoke_ns <= first).any(|i| {
            let after = Register.step(&state, &history[i].op, history[i].ret.as_ref());
            after.into_iter().any(|after| brute(history, after, done | 1 << i))
        })
    }

    #[test]
    fn it_agrees_with_trying_every_order() {
        let mut rng = support::rng::Rng::new(7, 7);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let history: Vec<_> = (0..rng.between(2, 6))
                .map(|_| {
                    let (op, ret) = match rng.below(3) {
                        0 => (Op::Write(rng.below(3) as i64), 0),
                        1 => (Op::Read, rng.below(4) as i64),
                        _ => (Op::Add, rng.between(1, 4) as i64),
                    };
                    let invoke = rng.below(20) as u64;
                    let ret = (!rng.percent(10)).then_some(ret);
                    entry(op, ret, invoke, invoke + 1 + rng.below(8) as u64)
                })
                .collect();
            let expected = brute(&history, 0, 0);
            assert_eq!(accepts(&history), expected, "{history:?}");
            if expected { good += 1 } else { bad += 1 }
        }
        assert!(good > 500 && bad > 500, "{good} accepted, {bad} rejected");
    }
}
