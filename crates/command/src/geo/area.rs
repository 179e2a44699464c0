//! An area on the earth: its nine cells, and the members of a set that lie in it.

use super::cell::{Bounds, Cell, Coord, LAT_MAX, LON_MAX, STEP_MAX};
use super::sphere::{RADIUS_M, degrees, distance, is_inside, lat_distance, middle, radians};
use crate::Error;
use crate::zset::algebra::Meter;
use std::ops::Range;
use value::{ScoreBound, ZSet};

/// Steps to look at a member: a few sines.
pub(super) const POINT_STEPS: usize = 4;
/// Vertices of a polygon looked at in a step.
const VERTICES_PER_STEP: usize = 16;
/// Members whose memory is taken at once.
const TAKEN: usize = 1024;

/// The form of an area. Lengths are in its unit.
#[derive(Debug)]
pub(super) enum Shape {
    Circle { radius: f64 },
    Rectangle { width: f64, height: f64 },
    Polygon(Vec<Coord>),
}

#[derive(Debug)]
pub(super) struct Area {
    pub center: Coord,
    pub shape: Shape,
    /// Metres of the unit.
    pub unit_m: f64,
}

/// A member in an area, by its rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Inside {
    pub rank: usize,
    pub distance_m: f64,
}

impl Area {
    /// The area of a polygon. Its centre is the middle of the vertices. O(vertices).
    pub fn polygon(vertices: Vec<Coord>) -> Area {
        Area { center: middle(&vertices), shape: Shape::Polygon(vertices), unit_m: 1.0 }
    }

    /// The distance of a place from the centre, if it lies in the area.
    fn distance_within(&self, at: Coord) -> Option<f64> {
        match &self.shape {
            Shape::Circle { radius } => {
                let distance = distance(self.center, at);
                let outside = distance > radius * self.unit_m;
                (!outside).then_some(distance)
            }
            Shape::Rectangle { width, height } => {
                // The latitudes first: they take no sine.
                let outside = lat_distance(at.lat, self.center.lat) > height * self.unit_m / 2.0
                    || distance(at, Coord { lon: self.center.lon, lat: at.lat }) > width * self.unit_m / 2.0;
                (!outside).then(|| distance(self.center, at))
            }
            Shape::Polygon(vertices) => is_inside(at, vertices).then(|| distance(self.center, at)),
        }
    }

    /// Steps to look at one member.
    pub fn point_steps(&self) -> usize {
        match &self.shape {
            Shape::Polygon(vertices) => POINT_STEPS + vertices.len() / VERTICES_PER_STEP,
            _ => POINT_STEPS,
        }
    }

    /// The latitudes and longitudes around the area. They may pass the ends of the earth.
    fn bounds(&self) -> Bounds {
        let (width, height) = match &self.shape {
            Shape::Circle { radius } => (self.unit_m * radius, self.unit_m * radius),
            Shape::Rectangle { width, height } => (self.unit_m * width / 2.0, self.unit_m * height / 2.0),
            Shape::Polygon(vertices) => return around(vertices),
        };
        let Coord { lon, lat } = self.center;
        let north = degrees(height / RADIUS_M);
        let east_at = |lat: f64| degrees(width / RADIUS_M / radians(lat).cos());
        // The edge that is nearer to a pole is the wider one.
        let east = if lat < 0.0 { east_at(lat - north) } else { east_at(lat + north) };
        Bounds {
            min: Coord { lon: lon - east, lat: lat - north },
            max: Coord { lon: lon + east, lat: lat + north },
        }
    }

    /// The distance from the centre that the size of the cells is chosen for.
    fn reach_m(&self, bounds: &Bounds) -> f64 {
        match &self.shape {
            Shape::Circle { radius } => radius * self.unit_m,
            Shape::Rectangle { width, height } => {
                ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt() * self.unit_m
            }
            Shape::Polygon(_) => distance(self.center, bounds.min).max(distance(self.center, bounds.max)),
        }
    }

    /// The cells that hold the area: the one of the centre first. Cells outside the bounds are left out.
    fn cells(&self) -> [Option<Cell>; 9] {
        let bounds = self.bounds();
        let mut step = step_for(self.reach_m(&bounds), self.center.lat);
        let mut cell = Cell::of(self.center, step, LAT_MAX);
        let polygonal = matches!(self.shape, Shape::Polygon(_));
        // One step is enough but for polygons, which may be far wider on the map than on the sphere.
        for _ in 0..if polygonal { STEP_MAX } else { 1 } {
            if step > 1 && !reaches(cell, &bounds) {
                step -= 1;
                cell = Cell::of(self.center, step, LAT_MAX);
            }
        }
        let Bounds { min, max } = cell.bounds();
        // In an area of few cells each may be its neighbour's neighbour on the other side.
        let wanted = |north: i32, east: i32| {
            step < 2
                || !(north < 0 && min.lat < bounds.min.lat
                    || north > 0 && max.lat > bounds.max.lat
                    || east < 0 && min.lon < bounds.min.lon
                    || east > 0 && max.lon > bounds.max.lon)
        };
        ORDER.map(|(north, east)| wanted(north, east).then(|| cell.neighbour(north, east)))
    }

    /// The ranks of the members in the cells, in the order in which they are searched (E2). O(log n).
    pub fn ranks(&self, set: &ZSet) -> impl Iterator<Item = Range<usize>> {
        let mut last = None;
        let cells = self.cells().into_iter().flatten();
        cells.filter(move |cell| last.replace(*cell) != Some(*cell)).map(|cell| {
            let (min, max) = cell.scores();
            set.ranks(&ScoreBound::Incl(min), &ScoreBound::Excl(max))
        })
    }

    /// The members in the area, at most `limit`, in the order of the cells. O(members in the cells). Errors:
    /// those of a charge, out of work memory.
    pub fn members(&self, set: &ZSet, limit: usize, meter: &mut Meter<'_, '_>) -> Result<Vec<Inside>, Error> {
        let (mut found, steps) = (Vec::new(), self.point_steps());
        for ranks in self.ranks(set) {
            for (rank, (_, score)) in ranks.clone().zip(set.iter_from(ranks.start)) {
                if found.len() >= limit {
                    return Ok(found);
                }
                meter.charge(steps)?;
                let Some(distance_m) = self.distance_within(Coord::of_score(score)) else { continue };
                if found.len().is_multiple_of(TAKEN) {
                    // A vector that grows is twice as long.
                    meter.take(2 * TAKEN * size_of::<Inside>())?;
                }
                found.push(Inside { rank, distance_m });
            }
        }
        Ok(found)
    }
}

/// The neighbours in the order in which they are searched, as steps to the north and to the east.
const ORDER: [(i32, i32); 9] = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)];

/// Half of the earth's length at the equator on the map, in metres.
const HALF_EARTH_M: f64 = 20_037_726.37;

/// The number of steps at which a cell and its neighbours hold everything within a distance. Towards the
/// poles a cell is narrower.
fn step_for(mut reach_m: f64, lat: f64) -> u32 {
    if reach_m == 0.0 {
        return STEP_MAX;
    }
    let mut step = 1;
    while reach_m < HALF_EARTH_M {
        reach_m *= 2.0;
        step += 1;
    }
    // Two fewer, so that the area always fits.
    step -= 2;
    step -= i32::from(lat.abs() > 66.0) + i32::from(lat.abs() > 80.0);
    step.clamp(1, STEP_MAX as i32) as u32
}

/// Whether the neighbours of a cell reach beyond all bounds.
fn reaches(cell: Cell, bounds: &Bounds) -> bool {
    let of = |north, east| cell.neighbour(north, east).bounds();
    let short = of(1, 0).max.lat < bounds.max.lat
        || of(-1, 0).min.lat > bounds.min.lat
        || of(0, 1).max.lon < bounds.max.lon
        || of(0, -1).min.lon > bounds.min.lon;
    !short
}

fn around(vertices: &[Coord]) -> Bounds {
    let none =
        Bounds { min: Coord { lon: LON_MAX, lat: LAT_MAX }, max: Coord { lon: -LON_MAX, lat: -LAT_MAX } };
    vertices.iter().fold(none, |Bounds { min, max }, at| Bounds {
        min: Coord { lon: min.lon.min(at.lon), lat: min.lat.min(at.lat) },
        max: Coord { lon: max.lon.max(at.lon), lat: max.lat.max(at.lat) },
    })
}
