//! The longest common subsequence of two strings, 64 cells of the table at a time.
//!
//! ```text
//!            b ────────────►  one bit per cell: does the length grow from column j-1 to column j?
//!      a  row 0   1 1 0 1 …
//!      │  row 1   1 0 0 1 …   row i follows from row i-1 by one addition over whole words (Crochemore, Hyyrö)
//!      ▼
//! ```
//!
//! The way back from the last corner needs only that bit. Where the bytes differ, it goes up if the length
//! grew, and left if it did not. The plain table gives the same steps when ties go left. So no lengths are
//! stored.
//!
//! - L1: only every k-th row is kept. The way back computes k rows again from the kept row above them.
//! - L2: columns are taken in blocks, so that the match masks of a block stay in the cache. The carry of each
//!   row goes from block to block in a bit of its own.
//!
//! Cost: O(n·m / 64) twice, n and m = the lengths; memory O(m·√n / 8): 8 MB for two strings of 100 KB. A pair
//! that needs more than [`MEMORY_MAX`] is refused.

use super::BYTES_PER_STEP;
use crate::options::{int, is};
use crate::table::{Command, KeySpec, READONLY, RO_ACCESS, Run, acl};
use crate::{Budget, Cx, Error};
use keyspace::View;
use resp::{Args, Reply};
use std::borrow::Cow;
use value::ValueRef;

pub(crate) static COMMANDS: &[Command] = &[Command::new("lcs", -3, Run::Read(lcs), READONLY, acl::STRING)
    .keys(&[KeySpec::range(1, 1, 1, RO_ACCESS)])
    .cost(cost)
    .doc(
        "string",
        "7.0.0",
        "O(N*M) where N and M are the lengths of s1 and s2, respectively",
        "Finds a longest common subsequence of two strings.",
    )];

/// Bytes of rows that may be kept.
const MEMORY_MAX: usize = 1 << 30;
/// Words of a block of columns.
const BLOCK: usize = 1024;
/// Words advanced in one step of the budget.
const WORDS_PER_STEP: usize = 32;
/// The cost of beginning a row, in words.
const ROW: usize = 8;
/// Words up to which all rows are kept.
const KEEP_ALL: usize = 1 << 16;

fn cost(view: &View<'_>, args: Args<'_>) -> usize {
    let len = |i| match view.string(args.at(i)) {
        Ok(Some(s)) => s.len(),
        _ => 0,
    };
    let (n, m) = (len(1), len(2));
    if n == 0 || m == 0 { 0 } else { (n + m) / BYTES_PER_STEP + 2 * n * (ROW + m / 64) / WORDS_PER_STEP }
}

/// The parts of the result that the options ask for.
#[derive(Default)]
struct LcsWanted {
    len: bool,
    idx: bool,
    with_len: bool,
    min_len: usize,
}

impl LcsWanted {
    fn parse(words: Args<'_>) -> Result<LcsWanted, Error> {
        let mut wanted = LcsWanted::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "IDX") {
                wanted.idx = true;
            } else if is(word, "LEN") {
                wanted.len = true;
            } else if is(word, "WITHMATCHLEN") {
                wanted.with_len = true;
            } else if is(word, "MINMATCHLEN") {
                wanted.min_len = int(words.next().ok_or(Error::Syntax)?)?.max(0) as usize;
            } else {
                return Err(Error::Syntax);
            }
        }
        if wanted.idx && wanted.len {
            return Err(Error::new("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(wanted)
    }
}

/// `LCS key1 key2 [LEN | IDX [MINMATCHLEN n] [WITHMATCHLEN]]`: the common bytes; their number; or their
/// positions, from the end to the start.
///
/// The keys are checked before the options. A key of another type is not a WRONGTYPE here, but a text of its
/// own, as in Redis.
///
/// Cost: O(n·m / 64), n and m = bytes of the strings. Errors: a key that is not a string, syntax, LEN with
/// IDX, MINMATCHLEN not an integer, too much memory.
fn lcs(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    for key in [args.at(1), args.at(2)] {
        let hit = cx.view.exists(key);
        cx.view.count_lookup(key, hit);
    }
    let Cx { view, out, budget, .. } = cx;
    let text = |key| match view.value(key) {
        Some(ValueRef::Str(s)) => Ok(Some(s)),
        Some(_) => Err(Error::new("ERR The specified keys must contain string values")),
        None => Ok(None),
    };
    let (a, b) = (text(args.at(1))?, text(args.at(2))?);
    let wanted = LcsWanted::parse(args.from(3))?;
    let empty = |s: &value::StrRef<'_>| s.is_empty();
    let both = if a.is_none_or(|s| empty(&s)) || b.is_none_or(|s| empty(&s)) { None } else { a.zip(b) };
    let (a, b) = both
        .map_or((Cow::Borrowed(&[][..]), Cow::Borrowed(&[][..])), |(a, b)| (a.contiguous(), b.contiguous()));
    let table = Table { a: &a, b: &b };
    if wanted.len {
        let len = table.len(budget)?;
        out.int(len as i64);
    } else if wanted.idx {
        matches(&table, &wanted, out, budget)?;
    } else {
        let mut common = Vec::new();
        table.walk(budget, &mut |run| common.extend(a[run.a..run.a + run.len].iter().rev()))?;
        common.reverse();
        out.bulk(&common);
    }
    Ok(())
}

fn matches(
    table: &Table<'_>,
    wanted: &LcsWanted,
    out: &mut Reply,
    budget: &mut Budget<'_>,
) -> Result<(), Error> {
    out.map(2);
    out.bulk(b"matches");
    let mark = out.mark();
    let (mut len, mut shown) = (0, 0);
    table.walk(budget, &mut |run| {
        len += run.len;
        if run.len < wanted.min_len {
            return;
        }
        shown += 1;
        out.array(2 + usize::from(wanted.with_len));
        for start in [run.a, run.b] {
            out.array(2);
            out.int(start as i64);
            out.int((start + run.len - 1) as i64);
        }
        if wanted.with_len {
            out.int(run.len as i64);
        }
    })?;
    out.array_at(mark, shown);
    out.bulk(b"len");
    out.int(len as i64);
    Ok(())
}

/// A run of common bytes: `a..a + len` of one string, `b..b + len` of the other.
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

/// The table of two strings. See the module.
struct Table<'a> {
    a: &'a [u8],
    b: &'a [u8],
}

impl Table<'_> {
    /// Words of a row.
    fn words(&self) -> usize {
        self.b.len().div_ceil(64)
    }

    /// Length of the subsequence: the number of growths along the last row.
    fn len(&self, budget: &mut Budget<'_>) -> Result<usize, Error> {
        let mut row = vec![u64::MAX; self.words()];
        self.rows(0..self.a.len(), &mut row, budget, &mut |_, _, _| ())?;
        Ok(row.iter().map(|word| word.count_zeros() as usize).sum())
    }

    /// Calls `f` for each run of common bytes, from the end to the start.
    fn walk(&self, budget: &mut Budget<'_>, f: &mut dyn FnMut(Match)) -> Result<(), Error> {
        let (n, words) = (self.a.len(), self.words());
        let step = if n * words <= KEEP_ALL { n.max(1) } else { n.isqrt().max(64) };
        let strips = n.div_ceil(step);
        if (strips + step) * words > MEMORY_MAX / 8 {
            return Err(Error::new("ERR Insufficient memory, failed allocating transient memory for LCS"));
        }
        // The rows above each strip (L1). The last strip need not be computed twice.
        let mut above = vec![u64::MAX; strips * words];
        for strip in 1..strips {
            let (before, this) = above.split_at_mut(strip * words);
            this[..words].copy_from_slice(&before[(strip - 1) * words..]);
            self.rows((strip - 1) * step..strip * step, &mut this[..words], budget, &mut |_, _, _| ())?;
        }
        let mut walk = LcsWalk { a: self.a, b: self.b, i: n, j: self.b.len(), run: 0 };
        let mut kept = vec![0; step * words];
        for strip in (0..strips).rev() {
            let first = strip * step;
            let row = &mut above[strip * words..(strip + 1) * words];
            self.rows(first..n.min(first + step), row, budget, &mut |i, at, block| {
                let to = (i - first) * words + at;
                kept[to..to + block.len()].copy_from_slice(block);
            })?;
            walk.strip(first, &kept, words, f);
        }
        walk.end(f);
        Ok(())
    }

    /// Computes rows from the one above them, block by block of columns. `keep` sees each row of a block with
    /// the index of its first word.
    fn rows(
        &self,
        rows: std::ops::Range<usize>,
        above: &mut [u64],
        budget: &mut Budget<'_>,
        keep: &mut dyn FnMut(usize, usize, &[u64]),
    ) -> Result<(), Error> {
        let mut carries = vec![false; rows.len()];
        let mut masks = vec![0u64; 256 * above.len().min(BLOCK)];
        for (block, row) in above.chunks_mut(BLOCK).enumerate() {
            let width = row.len();
            masks.fill(0);
            for (j, byte) in self.b[block * BLOCK * 64..].iter().take(width * 64).enumerate() {
                masks[usize::from(*byte) * width + j / 64] |= 1 << (j % 64);
            }
            let mut words = 0;
            for (i, carry) in rows.clone().zip(&mut carries) {
                words += ROW + width;
                if words > BLOCK {
                    budget.charge(std::mem::take(&mut words) / WORDS_PER_STEP)?;
                }
                let at = usize::from(self.a[i]) * width;
                *carry = advance(row, &masks[at..at + width], *carry);
                keep(i, block * BLOCK, row);
            }
            budget.charge(words / WORDS_PER_STEP)?;
        }
        Ok(())
    }
}

/// Advances by one row and gives the carry out of the block. A set bit says that the length does not grow
/// there.
fn advance(row: &mut [u64], mask: &[u64], mut carry: bool) -> bool {
    for (cell, mask) in row.iter_mut().zip(mask) {
        let (sum, over) = cell.overflowing_add(*cell & mask);
        let (sum, more) = sum.overflowing_add(carry.into());
        carry = over || more;
        *cell = sum | (*cell & !mask);
    }
    carry
}

/// The position on the way back: the corner behind byte `i` of `a` and byte `j` of `b`. A run of common bytes
/// follows it.
struct LcsWalk<'a> {
    a: &'a [u8],
    b: &'a [u8],
    i: usize,
    j: usize,
    run: usize,
}

impl LcsWalk<'_> {
    /// Walks back through the rows from `first` on.
    fn strip(&mut self, first: usize, rows: &[u64], words: usize, f: &mut dyn FnMut(Match)) {
        while self.i > first && self.j > 0 {
            let (i, j) = (self.i - 1, self.j - 1);
            if self.a[i] == self.b[j] {
                (self.i, self.j) = (i, j);
                self.run += 1;
                continue;
            }
            self.end(f);
            let grew = rows[(i - first) * words + j / 64] >> (j % 64) & 1 == 0;
            if grew {
                self.i = i;
            } else {
                self.j = j;
            }
        }
    }

    /// Reports the run that ends here.
    fn end(&mut self, f: &mut dyn FnMut(Match)) {
        if self.run > 0 {
            f(Match { a: self.i, b: self.j, len: std::mem::take(&mut self.run) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Db;

    /// The plain table and the way back through it, ties to the left.
    fn plain(a: &[u8], b: &[u8]) -> Vec<(usize, usize, usize)> {
        let width = b.len() + 1;
        let mut table = vec![0u32; (a.len() + 1) * width];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i * width + j] = if a[i - 1] == b[j - 1] {
                    table[(i - 1) * width + j - 1] + 1
                } else {
                    table[(i - 1) * width + j].max(table[i * width + j - 1])
                };
            }
        }
        let (mut i, mut j) = (a.len(), b.len());
        let mut runs: Vec<(usize, usize, usize)> = Vec::new();
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                (i, j) = (i - 1, j - 1);
                match runs.last_mut() {
                    Some(run) if run.0 == i + 1 && run.1 == j + 1 => *run = (i, j, run.2 + 1),
                    _ => runs.push((i, j, 1)),
                }
            } else if table[(i - 1) * width + j] > table[i * width + j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        runs
    }

    fn text(len: usize, letters: u8, seed: u64) -> Vec<u8> {
        (0..len as u64)
            .map(|i| b'a' + (stdx::hash::hash_u64(i ^ seed << 32) % u64::from(letters)) as u8)
            .collect()
    }

    fn agrees(a: &[u8], b: &[u8]) {
        let table = Table { a, b };
        let mut budget = Budget::unlimited(None);
        let mut runs = Vec::new();
        table.walk(&mut budget, &mut |run| runs.push((run.a, run.b, run.len))).unwrap();
        let expected = plain(a, b);
        assert_eq!(runs, expected);
        assert_eq!(table.len(&mut budget).unwrap(), expected.iter().map(|run| run.2).sum::<usize>());
    }

    #[test]
    fn every_way_back_is_that_of_the_plain_table() {
        for seed in 0..200 {
            let letters = [1, 2, 3, 20][seed as usize % 4];
            let lens = [0, 1, 5, 63, 64, 65, 130, 200];
            let len = |i: u64| lens[(stdx::hash::hash_u64(seed * 2 + i) % 8) as usize];
            agrees(&text(len(0), letters, seed), &text(len(1), letters, seed + 1000));
        }
    }

    #[test]
    fn strips_and_blocks_do_not_show() {
        // More rows than are kept at once, and more columns than a block has.
        agrees(&text(2100, 4, 1), &text(2200, 4, 2));
        agrees(&text(300, 4, 1), &text(70_000, 6, 2));
    }

    #[test]
    fn bytes_length_or_places_are_told() {
        let mut db = Db::new();
        db.check(&[
            ("mset a abcde b xbxdexx e \"\"", "OK"),
            ("sadd s x", "1"),
            ("lcs a b", "\"bde\""),
            ("lcs a b LEN", "3"),
            ("lcs a b LEN LEN", "3"),
            ("lcs a b IDX", "[\"matches\", [[[3, 4], [3, 4]], [[1, 1], [1, 1]]], \"len\", 3]"),
            ("lcs a b IDX WITHMATCHLEN MINMATCHLEN 2", "[\"matches\", [[[3, 4], [3, 4], 2]], \"len\", 3]"),
            ("lcs a b IDX MINMATCHLEN -5", "[\"matches\", [[[3, 4], [3, 4]], [[1, 1], [1, 1]]], \"len\", 3]"),
            ("lcs a none", "\"\""),
            ("lcs e a LEN", "0"),
            ("lcs none e IDX", "[\"matches\", [], \"len\", 0]"),
            ("lcs a b IDX LEN", "-ERR If you want both the length and indexes, please just use IDX."),
            ("lcs a b IDX MINMATCHLEN", "-ERR syntax error"),
            ("lcs a b MINMATCHLEN x", "-ERR value is not an integer or out of range"),
            ("lcs a s foo", "-ERR The specified keys must contain string values"),
        ]);
        let mut db = Db::new().resp3();
        db.line("mset a ab b b");
        assert_eq!(db.line("lcs a b IDX"), "{\"matches\": [[[1, 1], [0, 0]]], \"len\": 1}");
    }

    #[test]
    fn long_strings_are_work_for_others() {
        let mut db = Db::new();
        let long = "ab".repeat(20_000);
        db.run(&["MSET", "a", &long, "b", &long]);
        assert!(db.cost(&["LCS", "a", "b"]) > 100_000);
        assert!(db.cost(&["LCS", "a", "none"]) == 0);
        db.steps = 2000;
        assert!(db.line("lcs a b").starts_with("-ERR internal"));
        db.steps = usize::MAX;
        assert_eq!(db.line("lcs a b LEN"), "40000");
        assert_eq!(db.line("lcs a b"), format!("{long:?}"));
    }
}
