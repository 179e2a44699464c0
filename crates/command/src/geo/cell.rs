//! Cells: the earth halved `step` times in both directions, and numbers for the parts.
//!
//! The bits of latitude and longitude alternate, those of the latitude come first from the low end. So a cell
//! of fewer steps is a range of the numbers of more steps.

/// The number of steps of a member's score.
pub(super) const STEP_MAX: u32 = 26;
pub(super) const LON_MAX: f64 = 180.0;
/// The latitude at which the map of the earth is a square.
pub(super) const LAT_MAX: f64 = 85.05112878;

/// A place, in degrees.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Coord {
    pub lon: f64,
    pub lat: f64,
}

impl Coord {
    pub fn is_valid(self) -> bool {
        (-LON_MAX..=LON_MAX).contains(&self.lon) && (-LAT_MAX..=LAT_MAX).contains(&self.lat)
    }

    /// The place that a score stands for (E1). Any number is one. O(1).
    pub fn of_score(score: f64) -> Coord {
        let bounds = Cell::of_number(unsigned(score), STEP_MAX).bounds();
        Coord {
            lon: f64::midpoint(bounds.min.lon, bounds.max.lon).clamp(-LON_MAX, LON_MAX),
            lat: f64::midpoint(bounds.min.lat, bounds.max.lat).clamp(-LAT_MAX, LAT_MAX),
        }
    }

    /// The score of a valid place.
    pub fn score(self) -> f64 {
        Cell::of(self, STEP_MAX, LAT_MAX).number() as f64
    }
}

/// A part of the earth between two latitudes and two longitudes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Bounds {
    pub min: Coord,
    pub max: Coord,
}

/// A cell by its place in each direction. The last edge of the earth counts as one more place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    lat: u32,
    lon: u32,
    step: u32,
}

impl Cell {
    /// The cell of a place, on a map that reaches to the latitude `lat_max`. The place is on the map.
    pub fn of(at: Coord, step: u32, lat_max: f64) -> Cell {
        let part = |value: f64, max: f64| ((value + max) / (2.0 * max) * cells(step)) as u32;
        Cell { lat: part(at.lat, lat_max), lon: part(at.lon, LON_MAX), step }
    }

    pub fn of_number(number: u64, step: u32) -> Cell {
        Cell { lat: gather(number), lon: gather(number >> 1), step }
    }

    pub fn number(self) -> u64 {
        spread(self.lat) | spread(self.lon) << 1
    }

    /// The neighbour that lies so many cells to the north and to the east. The map has no end: behind the last
    /// cell comes the first.
    pub fn neighbour(self, north: i32, east: i32) -> Cell {
        let moved = |at: u32, by: i32| match by {
            0 => at,
            by => at.wrapping_add_signed(by) & ((1 << self.step) - 1),
        };
        Cell { lat: moved(self.lat, north), lon: moved(self.lon, east), ..self }
    }

    pub fn bounds(self) -> Bounds {
        let at = |part: u32, max: f64| -max + f64::from(part) / cells(self.step) * (2.0 * max);
        Bounds {
            min: Coord { lon: at(self.lon, LON_MAX), lat: at(self.lat, LAT_MAX) },
            max: Coord {
                lon: at(self.lon.wrapping_add(1), LON_MAX),
                lat: at(self.lat.wrapping_add(1), LAT_MAX),
            },
        }
    }

    /// The scores of the members in the cell: from the first up to, but without, the second.
    pub fn scores(self) -> (f64, f64) {
        let (number, shift) = (self.number(), 2 * (STEP_MAX - self.step));
        ((number << shift) as f64, ((number + 1) << shift) as f64)
    }
}

/// Cells in one direction.
fn cells(step: u32) -> f64 {
    (1u64 << step) as f64
}

const MASKS: [(u32, u64); 5] = [
    (16, 0x0000_ffff_0000_ffff),
    (8, 0x00ff_00ff_00ff_00ff),
    (4, 0x0f0f_0f0f_0f0f_0f0f),
    (2, 0x3333_3333_3333_3333),
    (1, 0x5555_5555_5555_5555),
];

/// Puts a zero bit above each bit.
fn spread(bits: u32) -> u64 {
    MASKS.iter().fold(u64::from(bits), |bits, (shift, mask)| (bits | bits << shift) & mask)
}

/// Takes every second bit, from the lowest on.
fn gather(bits: u64) -> u32 {
    let pairs = bits & 0x5555_5555_5555_5555;
    let whole = MASKS.iter().rev().fold(pairs, |bits, (shift, mask)| (bits | bits >> (shift / 2)) & mask);
    (whole | whole >> 16) as u32
}

/// A score as a signed number, as the processors of real servers convert it: what does not fit is the lowest.
pub(super) fn signed(score: f64) -> i64 {
    if !(-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&score) {
        i64::MIN
    } else {
        score as i64
    }
}

/// A score as an unsigned number. A negative one keeps its bits.
fn unsigned(score: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if score < HALF { signed(score) as u64 } else { signed(score - HALF) as u64 ^ 1 << 63 }
}

const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// The common geohash text of a place: 11 letters, the last of which is always `0`.
pub(super) fn geohash(at: Coord) -> [u8; 11] {
    let number = Cell::of(at, STEP_MAX, 90.0).number();
    std::array::from_fn(|i| match i {
        10 => LETTERS[0],
        i => LETTERS[(number >> (52 - (i + 1) * 5)) as usize & 31],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_spread_and_gathered() {
        for bits in [0, 1, 2, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 67_108_864] {
            let dull = (0..32).fold(0, |sum, i| sum | u64::from(bits >> i & 1) << (2 * i));
            assert_eq!((spread(bits), gather(dull), gather(dull << 1)), (dull, bits, 0), "{bits}");
            assert_eq!(gather(dull | 0xaaaa_aaaa_aaaa_aaaa), bits);
        }
    }

    /// Numbers that Redis 7.0 gave.
    #[test]
    fn scores_are_those_of_redis() {
        for (lon, lat, score) in [
            (13.361389, 38.115556, 3_479_099_956_230_698.0),
            (15.087269, 37.502669, 3_479_447_370_796_909.0),
            (180.0, LAT_MAX, 13_510_798_882_111_488.0),
            (-180.0, -LAT_MAX, 0.0),
        ] {
            assert_eq!(Coord { lon, lat }.score(), score);
        }
    }

    #[test]
    fn a_place_is_read_back_within_a_metre() {
        for i in 0..2000 {
            let lon = (f64::from(i) * 7.77).rem_euclid(360.0) - LON_MAX;
            let lat = (f64::from(i) * 3.33).rem_euclid(2.0 * LAT_MAX) - LAT_MAX;
            let back = Coord::of_score(Coord { lon, lat }.score());
            assert!((back.lon - lon).abs() < 3e-6 && (back.lat - lat).abs() < 3e-6, "{lon} {lat} {back:?}");
        }
    }

    #[test]
    fn odd_scores_are_places_too() {
        for score in [-5.0, f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 9e15, 9.3e18, 1.8e19, 1.5] {
            assert!(Coord::of_score(score).is_valid(), "{score}");
        }
        assert_eq!(unsigned(-5.0), -5i64 as u64);
        assert_eq!(unsigned(9_223_372_036_854_775_808.0), 1 << 63);
        assert_eq!((unsigned(f64::INFINITY), unsigned(f64::NEG_INFINITY)), (0, 1 << 63));
        assert_eq!((signed(f64::INFINITY), signed(1.9)), (i64::MIN, 1));
    }

    #[test]
    fn the_map_has_no_end() {
        let cell = Cell { lat: 3, lon: 0, step: 2 };
        assert_eq!(cell.neighbour(1, -1), Cell { lat: 0, lon: 3, step: 2 });
        assert_eq!(cell.neighbour(-1, 0), Cell { lat: 2, lon: 0, step: 2 });
        // The last edge of the earth.
        assert_eq!(Cell { lat: 4, lon: 1, step: 2 }.neighbour(0, 1), Cell { lat: 4, lon: 2, step: 2 });
    }
}
