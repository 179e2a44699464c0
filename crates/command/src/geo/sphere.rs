//! Distances on a sphere as large as the earth, by the haversine formula, in metres.

use super::cell::Coord;

/// The earth's radius.
pub(super) const RADIUS_M: f64 = 6_372_797.560856;

/// Radians of a degree.
const DEGREE: f64 = std::f64::consts::PI / 180.0;

pub(super) fn radians(degrees: f64) -> f64 {
    degrees * DEGREE
}

pub(super) fn degrees(radians: f64) -> f64 {
    radians / DEGREE
}

/// The distance of two latitudes.
pub(super) fn lat_distance(a: f64, b: f64) -> f64 {
    RADIUS_M * (radians(b) - radians(a)).abs()
}

/// The distance of two places: O(1), some 100 ns.
pub(super) fn distance(a: Coord, b: Coord) -> f64 {
    let east = ((radians(b.lon) - radians(a.lon)) / 2.0).sin();
    if east == 0.0 {
        return lat_distance(a.lat, b.lat);
    }
    let (from, to) = (radians(a.lat), radians(b.lat));
    let north = ((to - from) / 2.0).sin();
    let square = north * north + from.cos() * to.cos() * east * east;
    2.0 * RADIUS_M * square.sqrt().asin()
}

/// The middle of some places, seen from the centre of the earth. O(places).
pub(super) fn middle(places: &[Coord]) -> Coord {
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for at in places {
        let (lon, lat) = (radians(at.lon), radians(at.lat));
        x += lat.cos() * lon.cos();
        y += lat.cos() * lon.sin();
        z += lat.sin();
    }
    let n = places.len() as f64;
    let (x, y, z) = (x / n, y / n, z / n);
    Coord { lon: degrees(y.atan2(x)), lat: degrees(z.atan2((x * x + y * y).sqrt())) }
}

/// Whether a place lies inside a polygon on the flat map. O(vertices).
pub(super) fn is_inside(at: Coord, polygon: &[Coord]) -> bool {
    let Some(mut last) = polygon.last() else { return false };
    let mut inside = false;
    for next in polygon {
        if (next.lat > at.lat) != (last.lat > at.lat)
            && at.lon < (last.lon - next.lon) * (at.lat - next.lat) / (last.lat - next.lat) + next.lon
        {
            inside = !inside;
        }
        last = next;
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lon: f64, lat: f64) -> Coord {
        Coord { lon, lat }
    }

    #[test]
    fn distances_are_those_of_a_sphere() {
        let quarter = RADIUS_M * std::f64::consts::FRAC_PI_2;
        assert_eq!(distance(at(7.0, 8.0), at(7.0, 8.0)), 0.0);
        assert!((distance(at(0.0, 0.0), at(90.0, 0.0)) - quarter).abs() < 0.001);
        assert!((distance(at(20.0, -40.0), at(20.0, 50.0)) - quarter).abs() < 0.001);
        assert!((distance(at(179.5, 0.0), at(-179.5, 0.0)) - quarter / 90.0).abs() < 0.001);
    }

    #[test]
    fn a_polygon_has_an_inside_and_a_middle() {
        // The letter L.
        let shape = [at(0.0, 0.0), at(2.0, 0.0), at(2.0, 1.0), at(1.0, 1.0), at(1.0, 3.0), at(0.0, 3.0)];
        for (lon, lat, inside) in
            [(0.5, 2.5, true), (1.5, 0.5, true), (1.5, 2.0, false), (-0.1, 1.0, false), (0.5, 3.1, false)]
        {
            assert_eq!(is_inside(at(lon, lat), &shape), inside, "{lon} {lat}");
        }
        let centre = middle(&[at(170.0, 10.0), at(-170.0, 10.0), at(170.0, -10.0), at(-170.0, -10.0)]);
        assert!(centre.lon.abs() > 179.9 && centre.lat.abs() < 1e-9, "{centre:?}");
    }
}
