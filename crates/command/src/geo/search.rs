//! GEOSEARCH, GEOSEARCHSTORE, GEORADIUS, GEORADIUSBYMEMBER and their _RO forms.
//!
//! ```text
//! words ─► Query (area, order, count, parts) ─► members in the area, by rank ─► sorted ─► answered or stored
//! ```
//!
//! With COUNT and without ANY the nearest members are wanted, so all in the area are looked at. ANY stops
//! early.

use super::answer::{Direction, With, answer, sort, stored};
use super::area::{Area, Inside, Shape};
use super::cell::Coord;
use super::places::{GROUP, coord, place_of, unit_m};
use crate::options::{int, is};
use crate::table::{
    Begin, Command, DENYOOM, KeySpec, MOVABLEKEYS, OW_UPDATE, OptionWords, READONLY, RO_ACCESS, Run, WRITE,
    acl,
};
use crate::zset::algebra::Meter;
use crate::zset::note_result;
use crate::zset::range::store;
use crate::{Cx, Error};
use keyspace::View;
use resp::Args;
use stdx::num::{parse_f64, parse_i64};
use value::ZSet;

const COMPLEXITY: &str = "O(N+log(M)) for N members in the cells around the area and M in the set.";
const READ_ONE: &[KeySpec] = &[KeySpec::one(1, RO_ACCESS)];

/// A destination behind STORE or STOREDIST. The last of both counts.
const fn stored_behind(word: &'static str, from: usize) -> KeySpec {
    const NAMES: &[(&str, usize)] = &[("store", 1), ("storedist", 1)];
    KeySpec {
        begin: Begin::LastOf { word, shown: from as i32, options: OptionWords { from, takes: NAMES } },
        ..KeySpec::range(0, 0, 1, OW_UPDATE)
    }
}

pub(crate) static COMMANDS: &[Command] = &[
    Command::new("geosearch", -7, Run::Read(|cx, args| search(cx, args, &SEARCH)), READONLY, acl::GEO)
        .keys(READ_ONE)
        .cost(|view, args| steps(view, args, &SEARCH))
        .reply(|view, args| reply_steps(view, args, &SEARCH))
        .apart()
        .doc(GROUP, "6.2.0", COMPLEXITY, "Finds the places in a circle, a box or a polygon."),
    Command::new(
        "geosearchstore",
        -8,
        Run::Write(|cx, args| search(cx, args, &SEARCH_STORE)),
        WRITE | DENYOOM,
        acl::GEO,
    )
    .portable(700)
    .keys(&[KeySpec::one(1, OW_UPDATE), KeySpec::one(2, RO_ACCESS)])
    .cost(|view, args| steps(view, args, &SEARCH_STORE))
    .doc(
        GROUP,
        "6.2.0",
        COMPLEXITY,
        "Keeps the places in a circle, a box or a polygon under another key.",
    ),
    Command::new(
        "georadius",
        -6,
        Run::Write(|cx, args| search(cx, args, &RADIUS)),
        WRITE | DENYOOM | MOVABLEKEYS,
        acl::GEO,
    )
    .portable(700)
    .keys(&[KeySpec::one(1, RO_ACCESS), stored_behind("STORE", 6), stored_behind("STOREDIST", 6)])
    .cost(|view, args| steps(view, args, &RADIUS))
    .reply(|view, args| reply_steps(view, args, &RADIUS))
    .doc(GROUP, "3.2.0", COMPLEXITY, "Finds or keeps the places within a distance of a point."),
    Command::new("georadius_ro", -6, Run::Read(|cx, args| search(cx, args, &RADIUS_RO)), READONLY, acl::GEO)
        .keys(READ_ONE)
        .cost(|view, args| steps(view, args, &RADIUS_RO))
        .reply(|view, args| reply_steps(view, args, &RADIUS_RO))
        .apart()
        .doc(GROUP, "3.2.10", COMPLEXITY, "Finds the places within a distance of a point."),
    Command::new(
        "georadiusbymember",
        -5,
        Run::Write(|cx, args| search(cx, args, &BY_MEMBER)),
        WRITE | DENYOOM | MOVABLEKEYS,
        acl::GEO,
    )
    .portable(700)
    .keys(&[KeySpec::one(1, RO_ACCESS), stored_behind("STORE", 5), stored_behind("STOREDIST", 5)])
    .cost(|view, args| steps(view, args, &BY_MEMBER))
    .reply(|view, args| reply_steps(view, args, &BY_MEMBER))
    .doc(GROUP, "3.2.0", COMPLEXITY, "Finds or keeps the places within a distance of a member."),
    Command::new(
        "georadiusbymember_ro",
        -5,
        Run::Read(|cx, args| search(cx, args, &BY_MEMBER_RO)),
        READONLY,
        acl::GEO,
    )
    .keys(READ_ONE)
    .cost(|view, args| steps(view, args, &BY_MEMBER_RO))
    .reply(|view, args| reply_steps(view, args, &BY_MEMBER_RO))
    .apart()
    .doc(GROUP, "3.2.10", COMPLEXITY, "Finds the places within a distance of a member."),
];

// ----- words -----------------------------------------------------------------------------------------------

/// The words in front of the options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Front {
    /// Longitude, latitude, radius, unit.
    Point,
    /// Member, radius, unit.
    Member,
    /// None: the area is an option.
    Nothing,
}

/// The settings fixed by a command's name.
struct Named {
    front: Front,
    /// Index of the set's key, and of the first option.
    key: usize,
    options: usize,
    may_store: bool,
    event: &'static str,
}

const RADIUS: Named =
    Named { front: Front::Point, key: 1, options: 6, may_store: true, event: "georadiusstore" };
const RADIUS_RO: Named = Named { may_store: false, ..RADIUS };
const BY_MEMBER: Named = Named { front: Front::Member, options: 5, ..RADIUS };
const BY_MEMBER_RO: Named = Named { may_store: false, ..BY_MEMBER };
const SEARCH: Named =
    Named { front: Front::Nothing, key: 1, options: 2, may_store: false, event: "geosearchstore" };
const SEARCH_STORE: Named = Named { key: 2, options: 3, may_store: true, ..SEARCH };

/// The centre that was asked for.
#[derive(Clone, Copy, Default)]
enum Centre {
    #[default]
    None,
    /// A member; without a set its place is unknown.
    Member(Option<Coord>),
    Point(Coord),
}

/// The words of a search.
#[derive(Default)]
struct AreaQuery<'a> {
    from: Centre,
    shape: Option<(Shape, f64)>,
    with: With,
    count: Option<usize>,
    any: bool,
    direction: Option<Direction>,
    destination: Option<&'a [u8]>,
    stores_distance: bool,
}

/// A radius and its unit. Errors: not a number, negative, unsupported unit.
fn circle(radius: &[u8], unit: &[u8]) -> Result<(Shape, f64), Error> {
    let radius = parse_f64(radius).ok_or(Error::new("ERR need numeric radius"))?;
    if radius < 0.0 {
        return Err(Error::new("ERR radius cannot be negative"));
    }
    Ok((Shape::Circle { radius }, unit_m(unit)?))
}

fn rectangle(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64), Error> {
    let width = parse_f64(width).ok_or(Error::new("ERR need numeric width"))?;
    let height = parse_f64(height).ok_or(Error::new("ERR need numeric height"))?;
    if width < 0.0 || height < 0.0 {
        return Err(Error::new("ERR height or width cannot be negative"));
    }
    Ok((Shape::Rectangle { width, height }, unit_m(unit)?))
}

/// The vertices of `num-vertices longitude latitude ...`. Errors: their number, a coordinate.
fn polygon(words: Args<'_>) -> Result<Vec<Coord>, Error> {
    let count = parse_i64(words.at(0)).and_then(|count| i32::try_from(count).ok());
    let count = count.ok_or(Error::new("ERR invalid number of vertices"))?;
    let count = usize::try_from(count).ok().filter(|count| *count >= 3 && 2 * count < words.len());
    let count = count.ok_or(Error::new("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"))?;
    (0..count).map(|i| coord(words.at(2 * i + 1), words.at(2 * i + 2))).collect()
}

fn of_member(set: &ZSet, member: &[u8]) -> Result<Coord, Error> {
    place_of(set, member).ok_or(Error::new("ERR could not decode requested zset member"))
}

impl<'a> AreaQuery<'a> {
    /// Reads the words. Without a set no member is looked up. The order of the checks is Redis's. O(words).
    fn parse(set: Option<&ZSet>, args: Args<'a>, named: &Named) -> Result<AreaQuery<'a>, Error> {
        let mut query = AreaQuery::default();
        match (named.front, set) {
            (Front::Point, _) => {
                query.from = Centre::Point(coord(args.at(2), args.at(3))?);
                query.shape = Some(circle(args.at(4), args.at(5))?);
            }
            (Front::Member, Some(set)) => {
                query.from = Centre::Member(Some(of_member(set, args.at(2))?));
                query.shape = Some(circle(args.at(3), args.at(4))?);
            }
            (Front::Member, None) => {}
            (Front::Nothing, _) if named.may_store => query.destination = Some(args.at(1)),
            (Front::Nothing, _) => {}
        }
        let mut i = named.options;
        while i < args.len() {
            let words = args.from(i);
            let taken = match named.front {
                Front::Nothing => query.area_option(set, words, named)?,
                _ => query.store_option(words, named),
            };
            i += if taken > 0 { taken } else { query.option(words)? };
        }
        query.check(args, named)?;
        Ok(query)
    }

    /// Reads STORE or STOREDIST of GEORADIUS. Returns the number of words taken.
    fn store_option(&mut self, words: Args<'a>, named: &Named) -> usize {
        let (word, next) = (words.at(0), words.get(1));
        let with_distance = is(word, "storedist");
        if !named.may_store || next.is_none() || !(with_distance || is(word, "store")) {
            return 0;
        }
        self.destination = next;
        self.stores_distance = with_distance;
        2
    }

    /// Reads an option about the area of GEOSEARCH. One may come again, and the last counts; others exclude
    /// each other. Returns the number of words taken.
    fn area_option(&mut self, set: Option<&ZSet>, words: Args<'a>, named: &Named) -> Result<usize, Error> {
        let (word, left) = (words.at(0), words.len() - 1);
        let shape = self.shape.as_ref().map(|(shape, _)| shape);
        let (circular, boxed, polygonal) = (
            matches!(shape, Some(Shape::Circle { .. })),
            matches!(shape, Some(Shape::Rectangle { .. })),
            matches!(shape, Some(Shape::Polygon(_))),
        );
        match self.from {
            Centre::None | Centre::Member(_) if is(word, "frommember") && left >= 1 && !polygonal => {
                self.from = Centre::Member(set.map(|set| of_member(set, words.at(1))).transpose()?);
                Ok(2)
            }
            Centre::None | Centre::Point(_) if is(word, "fromlonlat") && left >= 2 && !polygonal => {
                self.from = Centre::Point(coord(words.at(1), words.at(2))?);
                Ok(3)
            }
            _ if is(word, "byradius") && left >= 2 && !boxed && !polygonal => {
                self.shape = Some(circle(words.at(1), words.at(2))?);
                Ok(3)
            }
            _ if is(word, "bybox") && left >= 3 && !circular && !polygonal => {
                self.shape = Some(rectangle(words.at(1), words.at(2), words.at(3))?);
                Ok(4)
            }
            Centre::None if is(word, "bypolygon") && left >= 2 && !circular && !boxed => {
                let vertices = polygon(words.from(1))?;
                let taken = 2 + 2 * vertices.len();
                self.shape = Some((Shape::Polygon(vertices), 1.0));
                Ok(taken)
            }
            _ if is(word, "storedist") && named.may_store => {
                self.stores_distance = true;
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    /// Reads an option that all know. Returns the number of words taken.
    fn option(&mut self, words: Args<'a>) -> Result<usize, Error> {
        match words.at(0) {
            word if is(word, "withdist") => self.with.distance = true,
            word if is(word, "withhash") => self.with.hash = true,
            word if is(word, "withcoord") => self.with.coord = true,
            word if is(word, "any") => self.any = true,
            word if is(word, "asc") => self.direction = Some(Direction::Nearest),
            word if is(word, "desc") => self.direction = Some(Direction::Farthest),
            word if is(word, "count") && words.len() > 1 => {
                let count = usize::try_from(int(words.at(1))?).ok().filter(|count| *count > 0);
                self.count = Some(count.ok_or(Error::new("ERR COUNT must be > 0"))?);
                return Ok(2);
            }
            _ => return Err(Error::Syntax),
        }
        Ok(1)
    }

    fn check(&self, args: Args<'_>, named: &Named) -> Result<(), Error> {
        let name = || String::from_utf8_lossy(args.at(0));
        let searches = named.front == Front::Nothing;
        if self.destination.is_some() && self.with.parts() > 0 {
            let what = if searches { "GEOSEARCHSTORE" } else { "STORE option in GEORADIUS" };
            let text = "is not compatible with WITHDIST, WITHHASH and WITHCOORD options";
            return Err(format!("ERR {what} {text}").into());
        }
        let polygonal = matches!(self.shape, Some((Shape::Polygon(_), _)));
        if searches && matches!(self.from, Centre::None) && !polygonal {
            let text = "exactly one of FROMMEMBER or FROMLONLAT can be specified for";
            return Err(format!("ERR {text} {}", name()).into());
        }
        if searches && self.shape.is_none() {
            let text = "exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for";
            return Err(format!("ERR {text} {}", name()).into());
        }
        if self.any && self.count.is_none() {
            return Err(Error::new("ERR the ANY argument requires COUNT argument"));
        }
        Ok(())
    }

    /// Takes the area out, which is known if the set is.
    fn take_area(&mut self) -> Option<Area> {
        match (self.shape.take()?, self.from) {
            ((Shape::Polygon(vertices), _), _) => Some(Area::polygon(vertices)),
            ((shape, unit_m), Centre::Point(center) | Centre::Member(Some(center))) => {
                Some(Area { center, shape, unit_m })
            }
            _ => None,
        }
    }

    /// The number of members at which a search may stop.
    fn limit(&self) -> usize {
        self.count.filter(|_| self.any).unwrap_or(usize::MAX)
    }
}

// ----- costs -----------------------------------------------------------------------------------------------

/// Members looked at for each one that ANY asks for. A run that needs more is charged for it.
const LOOKS_PER_MEMBER: usize = 16;

/// The query and the number of members in its cells.
fn foreseen<'a>(view: &View<'_>, args: Args<'a>, named: &Named) -> Option<(AreaQuery<'a>, Area, usize)> {
    let set = view.zset(args.at(named.key)).ok()??;
    let mut query = AreaQuery::parse(Some(set), args, named).ok()?;
    let area = query.take_area()?;
    let members = area.ranks(set).map(|ranks| ranks.len()).sum();
    Some((query, area, members))
}

fn steps(view: &View<'_>, args: Args<'_>, named: &Named) -> usize {
    let words = args.len();
    let Some((query, area, members)) = foreseen(view, args, named) else { return words };
    let looked_at = members.min(query.limit().saturating_mul(LOOKS_PER_MEMBER));
    let sorted = if query.destination.is_some() { 8 } else { 2 };
    // Nine look-ups of ranks.
    words + 9 * 4 + looked_at * (area.point_steps() + sorted)
}

fn reply_steps(view: &View<'_>, args: Args<'_>, named: &Named) -> usize {
    let Some((query, _, members)) = foreseen(view, args, named) else { return 0 };
    if query.destination.is_some() {
        return 0;
    }
    members.min(query.count.unwrap_or(usize::MAX)) * (1 + 4 * query.with.parts())
}

// ----- running ---------------------------------------------------------------------------------------------

/// The members in an area, or the number stored:
///
/// ```text
/// GEOSEARCH key FROMMEMBER member | FROMLONLAT longitude latitude
///     BYRADIUS radius unit | BYBOX width height unit
///     [ASC | DESC] [COUNT count [ANY]] [WITHCOORD] [WITHDIST] [WITHHASH]
/// GEOSEARCH key BYPOLYGON num-vertices longitude latitude ... [the same options]
/// GEOSEARCHSTORE destination key ... [STOREDIST]
/// GEORADIUS key longitude latitude radius unit ... [STORE key | STOREDIST key]
/// GEORADIUSBYMEMBER key member radius unit ... [STORE key | STOREDIST key]
/// GEORADIUS_RO, GEORADIUSBYMEMBER_RO: without STORE
/// ```
///
/// Cost: O(log n + c + m·log m), n = members, c = members in the nine cells, m = members in the area. Errors:
/// syntax, numbers, units, a missing member, options that exclude each other, WRONGTYPE. Source: Redis 7.0;
/// BYPOLYGON: Valkey 9.
fn search(cx: &mut Cx<'_, '_>, args: Args<'_>, named: &Named) -> Result<(), Error> {
    let key = args.at(named.key);
    let set = cx.view.zset(key)?;
    let mut query = AreaQuery::parse(set, args, named)?;
    let (Some(set), Some(area)) = (set, query.take_area()) else {
        return missing(cx, key, &query, named);
    };
    // O(1): the answer may outlive the key.
    let set = set.clone();
    let mut meter = Meter::new(&mut cx.budget);
    let mut found = area.members(&set, query.limit(), &mut meter)?;
    meter.end()?;
    let nearest = (query.count.is_some() && !query.any).then_some(Direction::Nearest);
    let count = query.count.unwrap_or(usize::MAX);
    match query.direction.or(nearest) {
        Some(direction) => {
            cx.charge(found.len() * found.len().max(2).ilog2() as usize / 4)?;
            sort(&mut found, direction, count);
        }
        None => found.truncate(count),
    }
    cx.view.count_lookup(key, true);
    match query.destination {
        Some(destination) => keep(cx, &set, found, &area, &query, (destination, named)),
        None => answer(cx, set, found, &area, query.with),
    }
}

/// Answers for a key that is missing: nothing was found.
fn missing(cx: &mut Cx<'_, '_>, key: &[u8], query: &AreaQuery<'_>, named: &Named) -> Result<(), Error> {
    match query.destination {
        Some(destination) => {
            // Words of a polygon are not known everywhere.
            note_result(cx, destination, &ZSet::new());
            store(cx, destination, ZSet::new(), named.event);
        }
        None => cx.out.array(0),
    }
    cx.view.count_lookup(key, false);
    Ok(())
}

/// Stores the members found and answers their number. The result is told as it is, since another server might
/// find or choose others. O(m·log n). Errors: a refused charge.
fn keep(
    cx: &mut Cx<'_, '_>,
    set: &ZSet,
    found: Vec<Inside>,
    area: &Area,
    query: &AreaQuery<'_>,
    (destination, named): (&[u8], &Named),
) -> Result<(), Error> {
    cx.charge(found.len() * 8)?;
    let unit_m = query.stores_distance.then_some(area.unit_m);
    let result = stored(set, found, unit_m);
    note_result(cx, destination, &result);
    store(cx, destination, result, named.event);
    Ok(())
}

#[cfg(test)]
mod tests;
