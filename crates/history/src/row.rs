//! One second, or one minute, in figures: what each column is, and how rows are added up.
//!
//! ```text
//! heat: 24 octaves │ causes: times, us, longest us, each │ figures │ busy: a loop each, in thousandths
//! ```

use crate::codec::{Reader, Writer};

/// Octaves of latency: up to 1 us, up to 2 us, … up to 4.2 s, and more.
pub const OCTAVES: usize = 24;
/// Loops with a column of their own; further ones have none.
const LOOPS_MAX: usize = 128;
/// Columns that a row from a disk may have.
const COLUMNS_MAX: usize = 1024;
/// Columns of each cause.
const PER_CAUSE: usize = 3;

/// How figures of several seconds become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Sum,
    Max,
    Last,
}

/// The name of a figure and its rule.
pub type Figure = (&'static str, Rule);

/// The columns' names. Later versions may add causes and figures at the end of each list.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub causes: &'static [&'static str],
    /// For each cause, whether it is a wait for others (a client's own doing is none).
    pub is_for_others: fn(usize) -> bool,
    pub figures: &'static [Figure],
}

/// The numbers of columns in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub causes: usize,
    pub figures: usize,
    pub loops: usize,
}

impl Shape {
    pub fn new(names: &Names, loops: usize) -> Shape {
        Shape { causes: names.causes.len(), figures: names.figures.len(), loops: loops.min(LOOPS_MAX) }
    }

    pub fn columns(self) -> usize {
        OCTAVES + self.causes * PER_CAUSE + self.figures + self.loops
    }

    fn figures_at(self) -> usize {
        OCTAVES + self.causes * PER_CAUSE
    }

    fn write(self, out: &mut Writer) {
        [self.causes, self.figures, self.loops].iter().for_each(|n| out.number(*n as u64));
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Shape> {
        let mut n = || bytes.count(COLUMNS_MAX / 4);
        Some(Shape { causes: n()?, figures: n()?, loops: n()? })
    }
}

/// The waits of one cause.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Waited {
    pub times: u64,
    pub us: u64,
    pub longest_us: u64,
}

/// A second or more, in figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    pub shape: Shape,
    pub cells: Box<[u64]>,
}

impl Row {
    pub fn new(shape: Shape) -> Row {
        Row { shape, cells: vec![0; shape.columns()].into_boxed_slice() }
    }

    pub fn heat(&self) -> &[u64] {
        &self.cells[..OCTAVES]
    }

    pub fn heat_mut(&mut self) -> &mut [u64] {
        &mut self.cells[..OCTAVES]
    }

    pub fn waited(&self, cause: usize) -> Waited {
        if cause >= self.shape.causes {
            return Waited::default();
        }
        let at = OCTAVES + cause * PER_CAUSE;
        Waited { times: self.cells[at], us: self.cells[at + 1], longest_us: self.cells[at + 2] }
    }

    pub fn set_waited(&mut self, cause: usize, waited: Waited) {
        let at = OCTAVES + cause * PER_CAUSE;
        self.cells[at..at + PER_CAUSE].copy_from_slice(&[waited.times, waited.us, waited.longest_us]);
    }

    /// A figure by its place; 0 if an older version wrote the row and did not know it.
    pub fn figure(&self, at: usize) -> u64 {
        if at < self.shape.figures { self.cells[self.shape.figures_at() + at] } else { 0 }
    }

    pub fn set_figure(&mut self, at: usize, to: u64) {
        self.cells[self.shape.figures_at() + at] = to;
    }

    pub fn busy(&self) -> &[u64] {
        &self.cells[self.shape.figures_at() + self.shape.figures..]
    }

    pub fn busy_mut(&mut self) -> &mut [u64] {
        let at = self.shape.figures_at() + self.shape.figures;
        &mut self.cells[at..]
    }

    /// Adds a later row, which may have another shape. `weight`: the seconds of this row so far and of the
    /// other, for the mean of the loops' busy time.
    pub fn add(&mut self, later: &Row, names: &Names, weight: (u64, u64)) {
        for (cell, more) in self.heat_mut().iter_mut().zip(later.heat()) {
            *cell = cell.saturating_add(*more);
        }
        for cause in 0..self.shape.causes {
            let (a, b) = (self.waited(cause), later.waited(cause));
            let (times, us) = (a.times.saturating_add(b.times), a.us.saturating_add(b.us));
            self.set_waited(cause, Waited { times, us, longest_us: a.longest_us.max(b.longest_us) });
        }
        for (at, (_, rule)) in names.figures.iter().enumerate().take(self.shape.figures) {
            let (a, b) = (self.figure(at), later.figure(at));
            let both = match rule {
                Rule::Sum => a.saturating_add(b),
                Rule::Max => a.max(b),
                Rule::Last => b,
            };
            self.set_figure(at, both);
        }
        let (own, other) = weight;
        let whole = u128::from(own) + u128::from(other);
        for (a, b) in self.busy_mut().iter_mut().zip(later.busy()) {
            let sum = u128::from(*a) * u128::from(own) + u128::from(*b) * u128::from(other);
            *a = u64::try_from(sum / whole.max(1)).unwrap_or(u64::MAX);
        }
    }

    /// The time that clients waited for others, and the longest such wait, in microseconds.
    pub fn waiting(&self, names: &Names) -> (u64, u64) {
        let causes = (0..self.shape.causes.min(names.causes.len())).filter(|at| (names.is_for_others)(*at));
        causes.map(|at| self.waited(at)).fold((0, 0), |(us, longest), waited| {
            (us.saturating_add(waited.us), longest.max(waited.longest_us))
        })
    }
}

/// Rows with the second of each in its minute.
pub type Rows = Vec<(u8, Row)>;

/// Writes rows of one shape. O(cells)
pub fn write_rows(rows: &Rows, shape: Shape, out: &mut Writer) {
    shape.write(out);
    out.number(rows.len() as u64);
    rows.iter().for_each(|(second, _)| out.number((*second).into()));
    let cells: Vec<Box<[u64]>> = rows.iter().map(|(_, row)| row.cells.clone()).collect();
    out.table(&cells, shape.columns());
}

/// Reads what [`write_rows`] wrote. O(cells)
pub fn read_rows(bytes: &mut Reader<'_>) -> Option<Rows> {
    let shape = Shape::read(bytes)?;
    let count = bytes.count(64)?;
    let seconds: Option<Vec<u8>> = (0..count).map(|_| Some(bytes.count(59)? as u8)).collect();
    let table = bytes.table(count, shape.columns())?;
    Some(seconds?.into_iter().zip(table).map(|(second, cells)| (second, Row { shape, cells })).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub const NAMES: Names = Names {
        causes: &["loop", "os", "socket"],
        is_for_others: |at| at < 2,
        figures: &[("ops", Rule::Sum), ("lag", Rule::Max), ("memory", Rule::Last)],
    };

    pub fn row(ops: u64) -> Row {
        let mut row = Row::new(Shape::new(&NAMES, 2));
        row.heat_mut()[3] = ops;
        row.set_figure(0, ops);
        row.set_figure(2, 1000 + ops);
        row.busy_mut().copy_from_slice(&[100, ops]);
        row
    }

    #[test]
    fn rows_are_added_up_by_the_rule_of_each_figure() {
        let (mut sum, mut other) = (row(5), row(7));
        sum.set_waited(1, Waited { times: 1, us: 10, longest_us: 10 });
        other.set_waited(1, Waited { times: 2, us: 30, longest_us: 25 });
        other.set_waited(2, Waited { times: 1, us: 900, longest_us: 900 });
        other.set_figure(1, 4);
        sum.add(&other, &NAMES, (1, 1));
        assert_eq!(sum.heat()[3], 12);
        assert_eq!(sum.waited(1), Waited { times: 3, us: 40, longest_us: 25 });
        assert_eq!([sum.figure(0), sum.figure(1), sum.figure(2)], [12, 4, 1007]);
        assert_eq!(sum.busy(), [100, 6]);
        assert_eq!(sum.waiting(&NAMES), (40, 25));
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let rows: Rows = (0..60).map(|n| (n, row(u64::from(n) * 3))).collect();
        let mut out = Writer::default();
        write_rows(&rows, rows[0].1.shape, &mut out);
        let bytes = out.into_bytes();
        assert_eq!(read_rows(&mut Reader::new(&bytes)).as_ref(), Some(&rows));
        for end in 0..bytes.len() {
            assert!(read_rows(&mut Reader::new(&bytes[..end])).is_none());
        }
    }

    #[test]
    fn a_row_of_another_version_is_added_as_far_as_it_is_known() {
        let mut sum = row(1);
        let older = Row::new(Shape { causes: 1, figures: 1, loops: 1 });
        let newer = Row::new(Shape { causes: 9, figures: 9, loops: 64 });
        sum.add(&older, &NAMES, (1, 1));
        sum.add(&newer, &NAMES, (2, 1));
        assert_eq!(sum.figure(0), 1);
    }
}
