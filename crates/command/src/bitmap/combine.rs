//! BITOP: the bits of several strings combined into a new one.
//!
//! The sources are walked side by side, run by run. Where unstored sources make the result zero, whole runs
//! are skipped, and the result is not stored there either.
//!
//! ```text
//! AND    in all           DIFF   in the first and in none of the others
//! OR     in any           DIFF1  not in the first but in any of the others
//! XOR    in an odd number ANDOR  in the first and in any of the others
//! NOT    not in it        ONE    in exactly one
//! ```

use super::kernel::{combine, first_other};
use crate::options::is;
use crate::string::BYTES_PER_STEP;
use crate::table::{Command, DENYOOM, KeySpec, OW_UPDATE, RO_ACCESS, Run, WRITE, acl};
use crate::{Budget, Cx, Error};
use keyspace::{Class, View};
use resp::Args;
use smallvec::SmallVec;
use std::ops::Range;
use stdx::progress::further;
use value::str::{Run as Piece, Runs};
use value::{Str, StrRef, Value};

pub(crate) static COMMANDS: &[Command] =
    &[Command::new("bitop", -4, Run::Write(bitop), WRITE | DENYOOM, acl::BITMAP)
        .keys(&[KeySpec::one(2, OW_UPDATE), KeySpec::range(3, -1, 1, RO_ACCESS)])
        .cost(cost)
        .doc("bitmap", "2.6.0", "O(N)", "Combines the bits of strings and stores the result.")];

/// Bytes combined at a time.
const WINDOW: usize = 4096;
/// Bytes of a result that one command tells.
const NOTED: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BitOp {
    And,
    Or,
    Xor,
    Not,
    Diff,
    Diff1,
    AndOr,
    One,
}

const OPS: [(&str, BitOp); 8] = [
    ("AND", BitOp::And),
    ("OR", BitOp::Or),
    ("XOR", BitOp::Xor),
    ("NOT", BitOp::Not),
    ("DIFF", BitOp::Diff),
    ("DIFF1", BitOp::Diff1),
    ("ANDOR", BitOp::AndOr),
    ("ONE", BitOp::One),
];

/// Steps to read the stored bytes of the sources. A NOT writes everything.
fn cost(view: &View<'_>, args: Args<'_>) -> usize {
    let not = is(args.at(1), "NOT");
    let steps = |key| match view.string(key) {
        Ok(Some(s)) if not => 2 * s.len() / BYTES_PER_STEP,
        Ok(Some(s)) => 2 * s.stored() / BYTES_PER_STEP,
        _ => 0,
    };
    args.from(3).iter().map(|key| 4 + steps(key)).sum()
}

/// `BITOP op destkey key [key ...]`: the length of the result, which is that of the longest source. Missing
/// sources, and the missing ends of shorter ones, are zeros. An empty result removes `destkey`.
///
/// Cost: O(n), n = bytes stored in all sources; with NOT n = bytes of the source. Errors: syntax, wrong
/// number of sources, WRONGTYPE of a source. Source: Redis 8.0; DIFF to ONE, Redis 8.2.
fn bitop(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let (name, dest, keys) = (args.at(1), args.at(2), args.from(3));
    let Some(&(name, op)) = OPS.iter().find(|(word, _)| is(name, word)) else { return Err(Error::Syntax) };
    if op == BitOp::Not && keys.len() != 1 {
        return Err(Error::new("ERR BITOP NOT must be called with a single source key."));
    }
    if matches!(op, BitOp::Diff | BitOp::Diff1 | BitOp::AndOr) && keys.len() < 2 {
        return Err(format!("ERR BITOP {name} must be called with at least two source keys.").into());
    }
    for key in keys {
        let found = cx.view.kind(key);
        cx.view.count_lookup(key, found.is_some());
        cx.view.string(key)?;
    }
    let mut sources = SmallVec::<[BitSource<'_>; 8]>::new();
    for key in keys {
        let s = cx.view.string(key)?.unwrap_or(StrRef::Flat(&[]));
        sources.push(BitSource::new(s));
    }
    let len = sources.iter().map(|source| source.of.len()).max().unwrap_or(0);
    let result = result(op, &mut sources, len, &mut cx.budget)?;
    drop(sources);
    if matches!(op, BitOp::Diff | BitOp::Diff1 | BitOp::AndOr | BitOp::One) && cx.view.listens() {
        note(cx, dest, &result)?;
    }
    if len > 0 {
        cx.view.put(dest, Value::Str(result), None);
        cx.view.changed(dest, Class::String, "set");
    } else if cx.view.remove(dest) {
        cx.view.changed(dest, Class::Generic, "del");
    }
    cx.out.int(len as i64);
    Ok(())
}

/// Notes a result, since servers before Redis 8.2 do not know the operation. Cost: O(bytes stored). Errors:
/// those of the budget.
fn note(cx: &mut Cx<'_, '_>, dest: &[u8], result: &Str) -> Result<(), Error> {
    let (result, len) = (result.as_ref(), result.len());
    if len == 0 {
        cx.effect(&[b"DEL", dest]);
        return Ok(());
    }
    let mut piece = Vec::new();
    let begin = len.min(NOTED);
    for run in result.runs(0..begin) {
        match run {
            Piece::Bytes(bytes) => piece.extend_from_slice(bytes),
            Piece::Zeros(n) => piece.resize(piece.len() + n as usize, 0),
        }
    }
    cx.effect(&[b"SET", dest, &piece]);
    let mut at = begin;
    for run in result.runs(begin..len) {
        if let Piece::Bytes(bytes) = run {
            for (i, bytes) in bytes.chunks(NOTED).enumerate() {
                cx.charge(bytes.len() / BYTES_PER_STEP)?;
                cx.effect(&[b"SETRANGE", dest, (at + i * NOTED).to_string().as_bytes(), bytes]);
            }
        } else if at + run.len() == len {
            cx.effect(&[b"SETRANGE", dest, (len - 1).to_string().as_bytes(), b"\0"]);
        }
        at += run.len();
    }
    Ok(())
}

/// Combines strings, taken as zeros behind their ends, into one of `len` bytes.
fn result(
    op: BitOp,
    sources: &mut [BitSource<'_>],
    len: usize,
    budget: &mut Budget<'_>,
) -> Result<Str, Error> {
    let mut result = Str::new();
    if len == 0 {
        return Ok(result);
    }
    // The whole length comes first, so that the string does not grow piece by piece. Parts never written cost
    // nothing.
    result.set_bit(len as u64 * 8 - 1, false);
    let mut windows = [[0; WINDOW]; 2];
    let mut at = 0;
    while at < len {
        let mut step = len - at;
        if let Some(zeros) = zeros(op, sources) {
            step = step.min(zeros);
        } else {
            step = sources.iter().map(BitSource::left).min().unwrap_or(step).min(step).min(WINDOW);
            let [to, other] = &mut windows;
            combine_window(op, sources, &mut to[..step], &mut other[..step]);
            if first_other(&to[..step], 0).is_some() {
                result.write_at(at, &to[..step]);
            }
            budget.charge(1 + step * sources.len() / BYTES_PER_STEP)?;
        }
        sources.iter_mut().for_each(|source| source.skip(step));
        at = further(at, at + step);
    }
    Ok(result)
}

/// Bytes up to which the result is zeros because of unstored sources. None if that is unknown.
fn zeros(op: BitOp, sources: &[BitSource<'_>]) -> Option<usize> {
    let of_all = |sources: &[BitSource<'_>]| {
        sources.iter().map(BitSource::zeros).try_fold(usize::MAX, |least, zeros| Some(least.min(zeros?)))
    };
    let (first, others) = sources.split_first()?;
    match op {
        BitOp::Not => None,
        BitOp::And => sources.iter().filter_map(BitSource::zeros).max(),
        BitOp::Or | BitOp::Xor | BitOp::One => of_all(sources),
        BitOp::Diff => first.zeros(),
        BitOp::Diff1 => of_all(others),
        BitOp::AndOr => first.zeros().or_else(|| of_all(others)),
    }
}

/// Combines the next bytes of all sources. No source changes its kind of run within them.
fn combine_window(op: BitOp, sources: &[BitSource<'_>], to: &mut [u8], other: &mut [u8]) {
    let Some((first, others)) = sources.split_first() else { return };
    let len = to.len();
    let stored = |source| BitSource::bytes(source, len);
    let others = others.iter();
    match op {
        BitOp::And | BitOp::Or | BitOp::Xor | BitOp::Not => first.copy(to),
        BitOp::Diff | BitOp::Diff1 | BitOp::AndOr | BitOp::One => to.fill(0),
    }
    match op {
        BitOp::Not => to.iter_mut().for_each(|byte| *byte = !*byte),
        // Unstored sources give zeros and were skipped, so all sources are stored here.
        BitOp::And => others.filter_map(stored).for_each(|with| combine(to, with, |a, b| a & b)),
        BitOp::Xor => others.filter_map(stored).for_each(|with| combine(to, with, |a, b| a ^ b)),
        BitOp::Or | BitOp::Diff | BitOp::Diff1 | BitOp::AndOr => {
            others.filter_map(stored).for_each(|with| combine(to, with, |a, b| a | b));
        }
        BitOp::One => {
            // `other`: bits in more than one source.
            other.fill(0);
            for with in sources.iter().filter_map(stored) {
                for ((once, twice), with) in to.iter_mut().zip(&mut *other).zip(with) {
                    *twice |= *once & with;
                    *once |= with;
                }
            }
            combine(to, other, |once, twice| once & !twice);
        }
    }
    // `to`: bits in any of the others.
    first.copy(other);
    match op {
        BitOp::Diff => combine(to, other, |any, first| first & !any),
        BitOp::Diff1 => combine(to, other, |any, first| any & !first),
        BitOp::AndOr => combine(to, other, |any, first| any & first),
        _ => {}
    }
}

/// A source and its run ahead. Behind its end there are zeros for ever.
struct BitSource<'a> {
    of: StrRef<'a>,
    at: usize,
    runs: Runs<'a>,
    run: Option<Piece<'a>>,
}

impl<'a> BitSource<'a> {
    fn new(of: StrRef<'a>) -> BitSource<'a> {
        let mut runs = of.runs(0..of.len());
        let run = runs.next();
        BitSource { of, at: 0, runs, run }
    }

    /// Bytes of the run ahead.
    fn left(&self) -> usize {
        self.run.map_or(usize::MAX, |run| run.len())
    }

    /// Bytes of the run ahead, if it is not stored.
    fn zeros(&self) -> Option<usize> {
        match self.run {
            Some(Piece::Bytes(_)) => None,
            Some(Piece::Zeros(n)) => Some(n as usize),
            None => Some(usize::MAX),
        }
    }

    /// The next bytes, if they are stored. `len` is at most `left`.
    fn bytes(&self, len: usize) -> Option<&'a [u8]> {
        match self.run {
            Some(Piece::Bytes(bytes)) => Some(&bytes[..len]),
            _ => None,
        }
    }

    fn copy(&self, to: &mut [u8]) {
        match self.bytes(to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => to.fill(0),
        }
    }

    fn skip(&mut self, n: usize) {
        self.at += n;
        match (n < self.left(), self.run) {
            (true, Some(Piece::Bytes(bytes))) => self.run = Some(Piece::Bytes(&bytes[n..])),
            (true, Some(Piece::Zeros(zeros))) => self.run = Some(Piece::Zeros(zeros - n as u64)),
            _ if n == self.left() => self.run = self.runs.next(),
            // Beyond the run: look the position up.
            _ => {
                let rest: Range<usize> = self.at.min(self.of.len())..self.of.len();
                self.runs = self.of.runs(rest);
                self.run = self.runs.next();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Db;
    use proptest::prelude::*;

    #[test]
    fn results_are_as_long_as_the_longest_source() {
        Db::both(|mut db| {
            db.check(&[
                ("set a \"\\xff\\x0f\"", "OK"),
                ("set b \"\\x0f\\xff\\xaa\"", "OK"),
                ("bitop AND d a b", "3"),
                ("get d", "\"\\x0f\\x0f\\x00\""),
                ("bitop or d a b", "3"),
                ("get d", "\"\\xff\\xff\\xaa\""),
                ("bitop xor d a b", "3"),
                ("get d", "\"\\xf0\\xf0\\xaa\""),
                ("bitop not d a", "2"),
                ("get d", "\"\\x00\\xf0\""),
                ("bitop diff d a b", "3"),
                ("get d", "\"\\xf0\\x00\\x00\""),
                ("bitop diff1 d a b", "3"),
                ("get d", "\"\\x00\\xf0\\xaa\""),
                ("bitop andor d a b a", "3"),
                ("get d", "\"\\xff\\x0f\\x00\""),
                ("bitop one d a b a", "3"),
                ("get d", "\"\\x00\\xf0\\xaa\""),
                ("bitop and d a none", "2"),
                ("get d", "\"\\x00\\x00\""),
                ("bitop and a a b", "3"),
                ("get a", "\"\\x0f\\x0f\\x00\""),
            ]);
        });
    }

    #[test]
    fn new_operations_are_told_as_their_result() {
        Db::both(|mut db| {
            db.check(&[("set a ab", "OK"), ("set b a", "OK"), ("bitop or d a b", "2")]);
            assert!(db.effect_lines().is_empty());
            for line in ["bitop diff d a b", "bitop diff1 d b a", "bitop one d a b", "bitop andor d a a"] {
                assert_eq!(db.line(line), "2");
                let told = db.effects[0].args().iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
                assert_eq!((db.effects.len(), &told[0][..], &told[1][..]), (1, &b"SET"[..], &b"d"[..]));
                db.call(&[b"SET".to_vec(), b"told".to_vec(), told[2].clone()]);
                assert_eq!(db.line("get d"), db.line("get told"), "{line}");
            }
            db.check(&[("bitop diff d none none", "0")]);
            assert_eq!(db.effect_lines(), ["DEL d"]);
        });
        let mut db = Db::new();
        db.check(&[
            ("setbit a 1600000 1", "0"),
            ("setbit a 4294967295 0", "0"),
            ("bitop one d a", "536870912"),
        ]);
        let told: Vec<Vec<Vec<u8>>> =
            db.effects.iter().map(|words| words.args().iter().map(<[u8]>::to_vec).collect()).collect();
        let bytes: usize = told.iter().flatten().map(Vec::len).sum();
        assert!(bytes < 200_000, "{bytes}");
        db.line("del d");
        for words in told {
            db.call(&words);
        }
        db.check(&[("bitpos d 1", "1600000"), ("bitcount d", "1"), ("strlen d", "536870912")]);
    }

    #[test]
    fn an_empty_result_removes_what_was_there() {
        let mut db = Db::new();
        db.check(&[
            ("set d v", "OK"),
            ("set e \"\"", "OK"),
            ("set x v EX 10", "OK"),
            ("bitop or x d d", "1"),
        ]);
        assert_eq!(db.events(), ["new:d", "set:d", "new:e", "set:e", "new:x", "set:x", "expire:x", "set:x"]);
        db.now_ms += 20_000;
        db.check(&[
            ("get x", "\"v\""),
            ("bitop or d e none", "0"),
            ("bitop or d e e", "0"),
            ("get d", "nil"),
        ]);
        assert_eq!(db.events(), ["keymiss:none", "del:d", "keymiss:d"]);
    }

    #[test]
    fn the_operation_is_looked_at_before_the_keys() {
        let mut db = Db::new();
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        db.check(&[
            ("set a v", "OK"),
            ("sadd s x", "1"),
            ("bitop foo d s", "-ERR syntax error"),
            ("bitop NOT d s s", "-ERR BITOP NOT must be called with a single source key."),
            ("bitop diff d s", "-ERR BITOP DIFF must be called with at least two source keys."),
            ("bitop andor d s", "-ERR BITOP ANDOR must be called with at least two source keys."),
            ("bitop one d a", "1"),
            ("bitop and d a s", wrong_type),
            ("bitop and d s a", wrong_type),
            ("get d", "\"v\""),
            ("bitop and s a a", "1"),
            ("get s", "\"v\""),
        ]);
    }

    #[test]
    fn what_is_not_stored_costs_nothing_and_stays_unstored() {
        let mut db = Db::new();
        db.check(&[
            ("setbit a 4294967295 1", "0"),
            ("setbit b 2000000000 1", "0"),
            ("setbit b 4294967295 1", "0"),
            ("bitop AND d a b", "536870912"),
            ("bitcount d", "1"),
            ("bitop XOR d a b", "536870912"),
            ("bitpos d 1", "2000000000"),
            ("bitop ONE d a b a b", "536870912"),
            ("bitcount d", "0"),
        ]);
        assert!(db.cost(&["BITOP", "AND", "d", "a", "b"]) < 100);
        assert!(db.cost(&["BITOP", "NOT", "d", "a"]) > 1_000_000);
        assert!(db.cost(&["BITCOUNT", "d"]) < 100);
    }

    fn plain(op: BitOp, sources: &[Vec<u8>], len: usize) -> Vec<u8> {
        let byte = |source: &Vec<u8>, i: usize| source.get(i).copied().unwrap_or(0);
        (0..len)
            .map(|i| {
                let first = byte(&sources[0], i);
                let any = sources[1..].iter().fold(0, |any, source| any | byte(source, i));
                match op {
                    BitOp::And => sources.iter().fold(255, |all, source| all & byte(source, i)),
                    BitOp::Or => first | any,
                    BitOp::Xor => sources.iter().fold(0, |odd, source| odd ^ byte(source, i)),
                    BitOp::Not => !first,
                    BitOp::Diff => first & !any,
                    BitOp::Diff1 => any & !first,
                    BitOp::AndOr => first & any,
                    BitOp::One => (0..8)
                        .filter(|bit| {
                            sources.iter().filter(|source| byte(source, i) >> bit & 1 == 1).count() == 1
                        })
                        .fold(0, |one, bit| one | 1 << bit),
                }
            })
            .collect()
    }

    fn source() -> impl Strategy<Value = Vec<u8>> {
        let part = (prop_oneof![0..100usize, 2000..9000usize, Just(4088)], 0..3u8, any::<u8>());
        prop::collection::vec(part, 0..5).prop_map(|parts| {
            let part = |(len, kind, seed): (usize, u8, u8)| {
                (0..len).map(move |i| [0, 255, seed.wrapping_mul(i as u8 | 1)][kind as usize])
            };
            parts.into_iter().flat_map(part).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn combining_runs_agrees_with_combining_bytes(sources in prop::collection::vec(source(), 1..5), which in 0..8usize) {
            let (_, op) = OPS[which];
            let sources = if op == BitOp::Not { sources[..1].to_vec() } else { sources };
            let strings: Vec<Str> = sources.iter().map(|bytes| Str::from_slice(bytes)).collect();
            let len = sources.iter().map(Vec::len).max().unwrap_or(0);
            let mut walks: Vec<_> = strings.iter().map(|s| BitSource::new(s.as_ref())).collect();
            let combined = result(op, &mut walks, len, &mut Budget::unlimited(None)).unwrap();
            combined.check_invariants();
            prop_assert!(combined.as_ref() == plain(op, &sources, len)[..], "{:?}", op);
        }
    }
}
