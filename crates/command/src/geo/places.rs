//! GEOADD, GEODIST, GEOHASH, GEOPOS.

use super::cell::{Coord, geohash};
use super::sphere::distance;
use super::text::{write_coordinate, write_distance};
use crate::options::{float, is, note_decimals};
use crate::table::{Command, DENYOOM, KeySpec, READONLY, RO_ACCESS, RW_UPDATE, Run, WRITE, acl};
use crate::zset::members::{Options, add};
use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use value::ZSet;

pub(super) const GROUP: &str = "geo";

const READ_ONE: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];
const EACH: &str = "O(1) for each member.";

pub(crate) static COMMANDS: &[Command] =
    &[
        Command::new("geoadd", -5, Run::Write(geoadd), WRITE | DENYOOM, acl::GEO)
            .portable(602)
            .keys(&[KeySpec::one(1, RW_UPDATE)])
            .cost(per_word)
            .doc(
                GROUP,
                "3.2.0",
                "O(log(N)) per place, N members there.",
                "Puts places with names into a sorted set, or moves them.",
            ),
        Command::new("geodist", -4, Run::Read(geodist), READONLY, acl::GEO).keys(READ_ONE).doc(
            GROUP,
            "3.2.0",
            "O(1)",
            "Tells how far two places are from each other.",
        ),
        Command::new("geohash", -2, Run::Read(geohashes), READONLY, acl::GEO)
            .keys(READ_ONE)
            .cost(per_word)
            .doc(GROUP, "3.2.0", EACH, "Answers places as geohash texts."),
        Command::new("geopos", -2, Run::Read(geopos), READONLY, acl::GEO).keys(READ_ONE).cost(per_word).doc(
            GROUP,
            "3.2.0",
            EACH,
            "Answers places as longitude and latitude.",
        ),
    ];

/// About five steps per word.
fn per_word(_: &View<'_>, args: Args<'_>) -> usize {
    args.len() * 5
}

/// Reads a longitude and a latitude. Errors: not a float, not on the map.
pub(super) fn coord(lon: &[u8], lat: &[u8]) -> Result<Coord, Error> {
    let at = Coord { lon: float(lon)?, lat: float(lat)? };
    if !at.is_valid() {
        return Err(format!("ERR invalid longitude,latitude pair {:.6},{:.6}", at.lon, at.lat).into());
    }
    Ok(at)
}

/// Reads a unit and gives its metres. Errors: unsupported unit.
pub(super) fn unit_m(word: &[u8]) -> Result<f64, Error> {
    let known = [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)];
    let found = known.iter().find(|(name, _)| is(word, name)).map(|(_, metres)| *metres);
    found.ok_or(Error::new("ERR unsupported unit provided. please use M, KM, FT, MI"))
}

/// `GEOADD key [NX|XX] [CH] longitude latitude member [longitude latitude member ...]`: the number of new
/// (CH: new or moved) members.
///
/// Cost: O(m·log n), m = places, n = members. Errors: syntax, coordinates that are no floats or not on the map,
/// WRONGTYPE. Source: Redis 7.0.
fn geoadd(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let mut options = Options::default();
    let mut first = 2;
    while let Some(word) = args.get(first) {
        match word {
            word if is(word, "nx") => options.nx = true,
            word if is(word, "xx") => options.xx = true,
            word if is(word, "ch") => options.ch = true,
            _ => break,
        }
        first += 1;
    }
    let places = args.from(first);
    if places.is_empty() || !places.len().is_multiple_of(3) || (options.nx && options.xx) {
        return Err(Error::Syntax);
    }
    let score = |i: usize| Ok(coord(places.at(3 * i), places.at(3 * i + 1))?.score());
    let scores = (0..places.len() / 3).map(score).collect::<Result<Vec<f64>, Error>>()?;
    let before = cx.view.changes().made();
    add(cx, args.at(1), options, &scores, |i| places.at(3 * i + 2))?;
    if cx.view.changes().made() > before {
        note_decimals(cx, args, |i| i >= first && (i - first) % 3 < 2);
    }
    Ok(())
}

/// The place of a member.
pub(super) fn place_of(set: &ZSet, member: &[u8]) -> Option<Coord> {
    set.score(member).map(Coord::of_score)
}

/// `GEODIST key member1 member2 [M|KM|FT|MI]`: the distance of two members, or null if one is missing.
///
/// Cost: O(1). Errors: unsupported unit, syntax, WRONGTYPE. Source: Redis 7.0; rounding as Redis 8.
fn geodist(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let unit_m = match args.len() {
        4 => 1.0,
        5 => unit_m(args.at(4))?,
        _ => return Err(Error::Syntax),
    };
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    let places = set.and_then(|set| Some((place_of(set, args.at(2))?, place_of(set, args.at(3))?)));
    match places {
        None => cx.out.null(),
        Some((from, to)) => write_distance(cx.out, distance(from, to) / unit_m),
    }
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `GEOHASH key [member ...]`: 11 letters for each member, or null for a missing one.
///
/// Cost: O(members). Errors: WRONGTYPE. Source: Redis 7.0.
fn geohashes(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    cx.out.array(args.len() - 2);
    for member in args.from(2).iter() {
        let place = set.and_then(|set| place_of(set, member));
        cx.out.bulk_or_null(place.map(geohash).as_ref().map(<[u8; 11]>::as_slice));
    }
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

/// `GEOPOS key [member ...]`: longitude and latitude of each member, or a null array for a missing one.
///
/// Cost: O(members). Errors: WRONGTYPE. Source: Redis 7.0, Valkey 9; Redis 8 prints fewer digits.
fn geopos(cx: &mut Cx<'_, '_>, args: Args<'_>) -> Result<(), Error> {
    let set = cx.view.zset(args.at(1))?;
    let hit = set.is_some();
    cx.out.array(args.len() - 2);
    for member in args.from(2).iter() {
        match set.and_then(|set| place_of(set, member)) {
            None => cx.out.null_array(),
            Some(at) => {
                cx.out.array(2);
                write_coordinate(cx.out, at.lon);
                write_coordinate(cx.out, at.lat);
            }
        }
    }
    cx.view.count_lookup(args.at(1), hit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Db;

    const SICILY: &str = "geoadd g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania";

    #[test]
    fn places_are_added_and_asked_for() {
        Db::both(|mut db| {
            db.check(&[
                (SICILY, "2"),
                ("type g", "zset"),
                ("zscore g Palermo", "\"3479099956230698\""),
                (
                    "geopos g Palermo none",
                    "[[\"13.36138933897018433\", \"38.11555639549629859\"], nil array]",
                ),
                ("geopos none a", "[nil array]"),
                ("geopos g", "[]"),
                ("geohash g Palermo none Catania", "[\"sqc8b49rny0\", nil, \"sqdtr74hyu0\"]"),
                ("geohash none a", "[nil]"),
                ("geodist g Palermo Catania", "\"166274.1516\""),
                ("geodist g Palermo Catania KM", "\"166.2742\""),
                ("geodist g Palermo Catania mi", "\"103.3182\""),
                ("geodist g Palermo Catania ft", "\"545518.8700\""),
                ("geodist g Palermo Palermo", "\"0.0000\""),
                ("geodist g Palermo none", "nil"),
                ("geodist none a b", "nil"),
                ("geodist none a b x", "-ERR unsupported unit provided. please use M, KM, FT, MI"),
                ("geodist g Palermo Catania km x", "-ERR syntax error"),
            ]);
            let mut db = db.resp3();
            assert_eq!(db.line("geopos g Palermo"), "[[13.361389338970184, 38.1155563954963]]");
        });
    }

    #[test]
    fn options_of_an_addition() {
        Db::both(|mut db| {
            db.check(&[
                ("geoadd g xx 1 1 a", "0"),
                ("exists g", "0"),
                ("geoadd g nx ch 1 1 a 2 2 b", "2"),
                ("geoadd g nx 3 3 a", "0"),
                ("geoadd g xx 3 3 a 4 4 c", "0"),
                ("geoadd g xx ch 3.5 3 a 4 4 c", "1"),
                ("zcard g", "2"),
                ("geoadd g nx xx 1 1 a", "-ERR syntax error"),
                ("geoadd g ch ch ch", "-ERR syntax error"),
                ("geoadd g 1 1 a 2", "-ERR syntax error"),
                ("geoadd g 1 1 d 181 2 a", "-ERR invalid longitude,latitude pair 181.000000,2.000000"),
                ("geoadd g 1 -85.1 a", "-ERR invalid longitude,latitude pair 1.000000,-85.100000"),
                ("geoadd g x 1 a", "-ERR value is not a valid float"),
                ("geoadd g nan 1 a", "-ERR value is not a valid float"),
                ("zscore g d", "nil"),
                ("set s x", "OK"),
                ("geoadd s 1 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
                ("geoadd s 1 x a", "-ERR value is not a valid float"),
                ("geopos s a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ]);
        });
    }

    #[test]
    fn an_addition_is_told_as_one_to_a_sorted_set() {
        let mut db = Db::new();
        db.line(SICILY);
        assert_eq!(db.events(), ["new:g", "zadd:g"]);
        db.line(SICILY);
        assert!(db.events().is_empty());
    }

    #[test]
    fn scores_that_are_no_places_have_one_anyway() {
        Db::new().check(&[
            ("zadd w -5 a inf b -inf c 1.5 h", "4"),
            ("geohash w a b c h", "[\"bp05b5048p0\", \"00bh0hbj200\", \"00bh0hbj200\", \"00bh0hbj210\"]"),
            ("geopos w a", "[[\"180\", \"85.0511287799999991\"]]"),
        ]);
    }
}
