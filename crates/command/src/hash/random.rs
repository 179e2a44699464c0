//! HRANDFIELD: fields by rank, each as likely as any other.

use super::live;
use crate::options::{int, is};
use crate::set::random::{BULK_MIN, PIECE, distinct};
use crate::table::*;
use crate::{Cx, Error, Stream};
use keyspace::View;
use resp::{Args, Reply};
use value::{Hash, Held};

pub(crate) static COMMANDS: &[Command] =
    &[Command::new("hrandfield", -2, Run::Read(hrandfield), READONLY, acl::HASH)
        .keys(&[KeySpec::one(1, RO_ACCESS)])
        .reply(crate::replies::counted)
        .tips(&["nondeterministic_output"])
        .cost(cost)
        .doc(
            "hash",
            "6.2.0",
            "O(N) for N fields answered.",
            "Answers random fields of a hash and leaves them there.",
        )];

fn cost(view: &View<'_>, args: Args<'_>) -> usize {
    let Some(count) = args.get(2).and_then(stdx::num::parse_i64) else { return 1 };
    let len = view.hash(args.at(1)).ok().flatten().map_or(0, Hash::len);
    // All fields, and repetitions, are streamed.
    if count < 0 || count as usize >= len { 1 } else { count as usize * 6 }
}

/// The form of a field, or a field and its value, in a reply. Pairs are arrays in RESP3.
#[derive(Clone, Copy)]
struct RandomForm {
    values: bool,
}

impl RandomForm {
    fn header(self, out: &mut Reply, count: usize) {
        let flat = self.values && !out.resp3();
        out.array(if flat { count.saturating_mul(2) } else { count });
    }

    #[inline]
    fn write(self, out: &mut Reply, (field, value): (&[u8], &[u8])) {
        if self.values && out.resp3() {
            out.array(2);
        }
        out.bulk(field);
        if self.values {
            out.bulk(value);
        }
    }
}

/// `HRANDFIELD key [count [WITHVALUES]]`: a random field or null; with a count an array. A negative count
/// allows repetitions.
///
/// Cost: O(count · log n), n = fields. Errors: count not an integer or out of range, syntax, WRONGTYPE.
fn hrandfield(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let key = args.at(1);
    let Some(count) = args.get(2) else { return one(cx, key) };
    let count = int(count)?;
    if count == i64::MIN {
        let text =
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
        return Err(Error::new(text));
    }
    if args.len() > 4 || args.get(3).is_some_and(|word| !is(word, "withvalues")) {
        return Err(Error::Syntax);
    }
    let form = RandomForm { values: args.len() == 4 };
    if form.values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(Error::OutOfRange);
    }
    let hash = live(cx, key)?;
    cx.view.count_lookup(key, hash.is_some());
    let hash = hash.unwrap_or_default();
    if hash.is_empty() || count == 0 {
        cx.out.array(0);
        return Ok(());
    }
    if count < 0 {
        let seed = cx.random();
        let each = if form.values { 2 * BULK_MIN } else { BULK_MIN };
        cx.expect_reply((count.unsigned_abs() as usize).saturating_mul(each))?;
        form.header(cx.out, count.unsigned_abs() as usize);
        cx.stream(RepeatedFields { hash, left: count.unsigned_abs(), seed, form })?;
        return Ok(());
    }
    let wanted = (count as usize).min(hash.len());
    let ranks = distinct(cx, wanted, hash.len())?;
    form.header(cx.out, wanted);
    match ranks {
        None => cx.stream(All { hash, next: 0, form })?,
        Some(ranks) => {
            for piece in ranks.chunks(PIECE) {
                cx.charge(piece.len())?;
                piece.iter().filter_map(|rank| hash.nth(*rank)).for_each(|pair| form.write(cx.out, pair));
            }
        }
    }
    Ok(())
}

fn one(cx: &mut Cx<'_, '_>, key: &[u8]) -> Result<(), Error> {
    let hash = live(cx, key)?;
    cx.view.count_lookup(key, hash.is_some());
    let hash = hash.unwrap_or_default();
    let rank = if hash.is_empty() { 0 } else { cx.random_below(hash.len()) };
    cx.out.bulk_or_null(hash.nth(rank).map(|(field, _)| field));
    Ok(())
}

/// The fields from a rank on.
struct All {
    hash: Hash,
    next: usize,
    form: RandomForm,
}

impl Stream for All {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        for pair in self.hash.iter_from(self.next) {
            self.form.write(out, pair);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.hash.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.hash.held().into_iter().for_each(held);
    }
}

/// A number of random fields, with repetitions. The hash is not empty.
struct RepeatedFields {
    hash: Hash,
    left: u64,
    seed: u64,
    form: RandomForm,
}

impl Stream for RepeatedFields {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while self.left > 0 && out.len() < end {
            self.seed = stdx::hash::hash_u64(self.seed);
            let rank = ((self.seed as u128 * self.hash.len() as u128) >> 64) as usize;
            self.form.write(out, self.hash.nth(rank).unwrap_or_default());
            self.left -= 1;
        }
        self.left > 0
    }

    fn repeats(&self) -> bool {
        true
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.hash.held().into_iter().for_each(held);
    }
}
