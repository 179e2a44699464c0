//! SPOP and SRANDMEMBER: members by rank, each as likely as any other.

use super::members::{self, write};
use crate::options::int;
use crate::table::{Command, Effect, FAST, KeySpec, READONLY, RO_ACCESS, RW_ACCESS_DELETE, Run, WRITE, acl};
use crate::{Cx, Error, Stream};
use keyspace::{Class, View};
use resp::{Args, Reply};
use std::collections::HashSet;
use value::{Elem, Held, Set};

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("spop", -2, Run::Write(spop), WRITE | FAST, acl::SET)
        .portable(100)
        .keys(&[KeySpec::one(1, RW_ACCESS_DELETE)])
        .reply(crate::replies::counted)
        .tips(&["nondeterministic_output"])
        .effect(Effect::Noted)
        .cost(pop_cost)
        .doc(
            "set",
            "1.0.0",
            "O(N) for N members popped.",
            "Takes random members out of a set and answers them.",
        ),
    Command::new("srandmember", -2, Run::Read(srandmember), READONLY, acl::SET)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::counted)
        .tips(&["nondeterministic_output"])
        .cost(random_cost)
        .doc(
            "set",
            "1.0.0",
            "O(N) for N members answered.",
            "Answers random members of a set and leaves them there.",
        ),
];

/// Bytes of the shortest element of a reply.
pub(crate) const BULK_MIN: usize = 6;
/// Steps for a popped member.
const POP_STEPS: usize = 6;
/// Members drawn between two looks at the budget.
pub(crate) const PIECE: usize = 64;

fn pop_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let len = view.set(args.at(1)).ok().flatten().map_or(0, Set::len);
    let count = args.get(2).and_then(stdx::num::parse_i64).unwrap_or(1).unsigned_abs() as usize;
    // A pop of all members moves one pointer, and the reply is streamed.
    if count >= len { 1 } else { count * POP_STEPS }
}

fn random_cost(view: &View<'_>, args: Args<'_>) -> usize {
    let len = view.set(args.at(1)).ok().flatten().map_or(0, Set::len);
    match args.get(2).and_then(stdx::num::parse_i64) {
        // A reply with repetitions is streamed.
        None | Some(i64::MIN..0) => 1,
        // A reply of all members is streamed too.
        Some(count) if count as usize >= len => 1,
        Some(count) => count as usize * 4,
    }
}

/// `SPOP key [count]`: a random member or null; with a count an array. Popped members leave the set.
///
/// Cost: O(count · log n), n = members; O(1) and the reply if all are popped. Errors: syntax, count negative,
/// WRONGTYPE.
fn spop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let Some(count) = args.get(2) else { return pop_one(cx, key) };
    let count = match int(count) {
        Ok(n) if n >= 0 => n as usize,
        _ => return Err(Error::new("ERR value is out of range, must be positive")),
    };
    let len = cx.view.set(key)?.map_or(0, Set::len);
    let count = count.min(len);
    cx.out.set(count);
    if count == 0 {
        return Ok(());
    }
    if count == len {
        let all = cx.view.set(key)?.cloned().unwrap_or_default();
        cx.view.remove(key);
        cx.view.changed(key, Class::Set, "spop");
        cx.view.notify(key, Class::Generic, "del");
        cx.effect(&[b"DEL", key]);
        return members::answer(cx, all);
    }
    let mut popped: Vec<Vec<u8>> = Vec::with_capacity(count);
    cx.charge(count * POP_STEPS)?;
    for left in (len - count + 1..=len).rev() {
        let rank = cx.random_below(left);
        let member = cx.view.set_mut(key)?.and_then(|set| set.remove_nth(rank));
        popped.extend(member);
        if left % PIECE == 0 {
            cx.budget.pause()?;
        }
    }
    popped.iter().for_each(|member| cx.out.bulk(member));
    cx.view.changed(key, Class::Set, "spop");
    let mut effect: Vec<&[u8]> = vec![b"SREM", key];
    effect.extend(popped.iter().map(|member| &member[..]));
    cx.effect(&effect);
    Ok(())
}

fn pop_one(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<(), Error> {
    let len = cx.view.set(key)?.map_or(0, Set::len);
    if len == 0 {
        cx.out.null();
        return Ok(());
    }
    let rank = cx.random_below(len);
    let Some(member) = cx.view.set_mut(key)?.and_then(|set| set.remove_nth(rank)) else {
        cx.out.null();
        return Ok(());
    };
    cx.view.changed(key, Class::Set, "spop");
    cx.view.remove_if_empty(key);
    cx.effect(&[b"SREM", key, &member]);
    cx.out.bulk(&member);
    Ok(())
}

/// `SRANDMEMBER key [count]`: a random member or null; with a count an array. A negative count allows
/// repetitions.
///
/// Cost: O(count · log n), n = members. Errors: syntax, count not an integer or the lowest one, WRONGTYPE.
fn srandmember(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    if args.len() > 3 {
        return Err(Error::Syntax);
    }
    let Some(count) = args.get(2) else {
        let len = cx.view.set(key)?.map_or(0, Set::len);
        let rank = if len == 0 { 0 } else { cx.random_below(len) };
        match cx.view.set(key)?.and_then(|set| set.nth(rank)) {
            Some(member) => write(cx.out, member),
            None => cx.out.null(),
        }
        cx.view.count_lookup(key, len > 0);
        return Ok(());
    };
    let count = int(count)?;
    if count == i64::MIN {
        let text =
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        return Err(Error::new(text));
    }
    let len = cx.view.set(key)?.map_or(0, Set::len);
    cx.view.count_lookup(key, len > 0);
    if len == 0 || count == 0 {
        cx.out.array(0);
        return Ok(());
    }
    if count < 0 {
        let seed = cx.random();
        let Some(set) = cx.view.set(key)?.cloned() else { return Ok(()) };
        cx.expect_reply((count.unsigned_abs() as usize).saturating_mul(BULK_MIN))?;
        cx.out.array(count.unsigned_abs() as usize);
        cx.stream(RepeatedMembers { set, left: count.unsigned_abs(), seed })?;
        return Ok(());
    }
    let wanted = (count as usize).min(len);
    let ranks = distinct(cx, wanted, len)?;
    let Some(set) = cx.view.set(key)? else { return Ok(()) };
    cx.out.array(wanted);
    match ranks {
        None => {
            let all = set.clone();
            members::answer(cx, all)
        }
        Some(ranks) => {
            for piece in ranks.chunks(PIECE) {
                cx.budget.charge_reply(cx.out.len(), piece.len())?;
                piece.iter().filter_map(|rank| set.nth(*rank)).for_each(|member| write(cx.out, member));
            }
            Ok(())
        }
    }
}

/// `wanted` different ranks below `len`, in random order. None means all. O(wanted).
pub(crate) fn distinct(cx: &mut Cx<'_, '_>, wanted: usize, len: usize) -> Result<Option<Vec<usize>>, Error> {
    if wanted >= len {
        return Ok(None);
    }
    cx.charge(wanted * 2)?;
    // Floyd's sampling: each subset is equally likely, with one draw per element.
    let mut chosen = HashSet::with_capacity(wanted);
    let mut ranks = Vec::with_capacity(wanted);
    for top in len - wanted..len {
        let rank = cx.random_below(top + 1);
        let rank = if chosen.insert(rank) { rank } else { top };
        chosen.insert(rank);
        ranks.push(rank);
        if ranks.len().is_multiple_of(PIECE) {
            cx.budget.pause()?;
        }
    }
    Ok(Some(ranks))
}

/// A number of random members, with repetitions.
struct RepeatedMembers {
    set: Set,
    left: u64,
    seed: u64,
}

impl Stream for RepeatedMembers {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.left > 0 && out.len() < end {
            self.seed = stdx::hash::hash_u64(self.seed);
            let rank = ((self.seed as u128 * self.set.len() as u128) >> 64) as usize;
            write(out, self.set.nth(rank).unwrap_or(Elem::Bytes(b"")));
            self.left -= 1;
        }
        self.left > 0
    }

    fn repeats(&self) -> bool {
        true
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(held);
    }
}
