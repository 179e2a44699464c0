//! The answers of searches: the members in an area in the order asked for, written piece by piece.

use super::area::{Area, Inside};
use super::cell::{Coord, signed};
use super::text::{write_coordinate, write_distance};
use crate::string::STREAM_BYTES;
use crate::zset::build;
use crate::{Cx, Error, STREAM_FROM, Stream};
use resp::Reply;
use std::cmp::Ordering;
use value::{Held, ZSet};

/// The parts of each member that are written beside its name.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct With {
    pub distance: bool,
    pub hash: bool,
    pub coord: bool,
}

impl With {
    /// Parts beside the name.
    pub fn parts(self) -> usize {
        usize::from(self.distance) + usize::from(self.hash) + usize::from(self.coord)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Nearest,
    Farthest,
}

/// Sorts by distance, and leaves at most `count`. Members at the same distance stay in their order, if all are
/// wanted. O(n·log n), or O(n + count·log count).
pub(super) fn sort(found: &mut Vec<Inside>, direction: Direction, count: usize) {
    let by_distance = |a: &Inside, b: &Inside| {
        let order = a.distance_m.partial_cmp(&b.distance_m).unwrap_or(Ordering::Equal);
        if direction == Direction::Farthest { order.reverse() } else { order }
    };
    if count >= found.len() {
        return found.sort_by(by_distance);
    }
    let by_all = |a: &Inside, b: &Inside| by_distance(a, b).then(a.rank.cmp(&b.rank));
    found.select_nth_unstable_by(count, by_all);
    found.truncate(count);
    found.sort_unstable_by(by_all);
}

/// Members found, not written yet.
struct Rest {
    set: ZSet,
    found: Vec<Inside>,
    next: usize,
    with: With,
    unit_m: f64,
}

impl Rest {
    fn write(&self, out: &mut Reply, inside: Inside) {
        let Some((member, score)) = self.set.nth(inside.rank) else { return };
        if self.with != With::default() {
            out.array(1 + self.with.parts());
        }
        out.bulk(member);
        if self.with.distance {
            write_distance(out, inside.distance_m / self.unit_m);
        }
        if self.with.hash {
            out.int(signed(score));
        }
        if self.with.coord {
            let at = Coord::of_score(score);
            out.array(2);
            write_coordinate(out, at.lon);
            write_coordinate(out, at.lat);
        }
    }
}

impl Stream for Rest {
    fn fill(&mut self, out: &mut Reply, room: usize) -> bool {
        let end = out.len().saturating_add(room);
        while let Some(inside) = self.found.get(self.next) {
            self.write(out, *inside);
            self.next += 1;
            if out.len() >= end {
                break;
            }
        }
        self.next < self.found.len()
    }

    fn holds(&self, held: &mut dyn FnMut(Held)) {
        self.set.held().into_iter().for_each(&mut *held);
        held(Held::own(self, self.found.capacity() * size_of::<Inside>()));
    }
}

/// Answers with members; many of them as a stream. Errors: those of a stream.
pub(super) fn answer(
    cx: &mut Cx<'_, '_>,
    set: ZSet,
    found: Vec<Inside>,
    area: &Area,
    with: With,
) -> Result<(), Error> {
    cx.out.array(found.len());
    let mut rest = Rest { set, found, next: 0, with, unit_m: area.unit_m };
    if rest.found.len() > STREAM_FROM || rest.fill(cx.out, STREAM_BYTES) {
        cx.stream(rest)?;
    }
    Ok(())
}

/// A set of the members found, with their own scores or with their distances. O(n·log n).
pub(super) fn stored(set: &ZSet, mut found: Vec<Inside>, unit_m: Option<f64>) -> ZSet {
    let named = |inside: &Inside| set.nth(inside.rank).unwrap_or_default();
    let Some(unit_m) = unit_m else {
        found.sort_unstable_by_key(|inside| inside.rank);
        found.dedup_by_key(|inside| inside.rank);
        return build(found.len(), found.iter().map(named));
    };
    let mut items: Vec<(&[u8], f64)> =
        found.iter().map(|inside| (named(inside).0, inside.distance_m / unit_m)).collect();
    items.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(b.0)));
    items.dedup();
    build(items.len(), items.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_order_is_the_beginning_of_all_of_it() {
        let all: Vec<Inside> =
            (0..500).map(|rank| Inside { rank, distance_m: f64::from((rank * 7919 % 97) as u32) }).collect();
        for direction in [Direction::Nearest, Direction::Farthest] {
            let mut whole = all.clone();
            sort(&mut whole, direction, usize::MAX);
            for count in [1, 2, 97, 499, 500] {
                let mut part = all.clone();
                sort(&mut part, direction, count);
                assert_eq!(part, whole[..count]);
            }
        }
    }
}
