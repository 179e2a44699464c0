//! Searches: what is found, in which order, how it is answered and stored.

use crate::registry;
use crate::testing::{Db, split};
use resp::OwnedArgs;

const SICILY: &str =
    "geoadd g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania 12.5 38.2 edge 14 37.5 mid";

fn sicily() -> Db {
    let mut db = Db::new();
    db.check(&[(SICILY, "4")]);
    db
}

/// Answers of Redis 7.0.
#[test]
fn places_are_found_in_circles_and_boxes() {
    let mut db = sicily();
    db.check(&[
        ("geosearch g fromlonlat 15 37 byradius 200 km", r#"["mid", "Palermo", "Catania"]"#),
        ("geosearch g fromlonlat 15 37 byradius 200 km asc", r#"["Catania", "mid", "Palermo"]"#),
        ("geosearch g fromlonlat 15 37 byradius 200 km desc count 1", r#"["Palermo"]"#),
        ("geosearch g fromlonlat 15 37 byradius 200 km count 2", r#"["Catania", "mid"]"#),
        ("geosearch g fromlonlat 15 37 byradius 200 km count 1 any", r#"["mid"]"#),
        (
            "geosearch g fromlonlat 15 37 byradius 100 km withdist withhash withcoord",
            r#"[["Catania", "56.4413", 3479447370796909, ["15.08726745843887329", "37.50266842333162032"]]]"#,
        ),
        (
            "geosearch g fromlonlat 15 37 bybox 400 400 km asc withdist",
            r#"[["Catania", "56.4413"], ["mid", "104.5527"], ["Palermo", "190.4424"]]"#,
        ),
        ("geosearch g frommember Palermo byradius 0 m", r#"["Palermo"]"#),
        ("georadius g 15 37 200 km count 1", r#"["Catania"]"#),
        ("georadius_ro g 15 37 100 km withdist", r#"[["Catania", "56.4413"]]"#),
        ("georadiusbymember g Catania 100 km asc", r#"["Catania", "mid"]"#),
        ("georadiusbymember_ro g Catania 1 km", r#"["Catania"]"#),
        ("geosearch none fromlonlat 15 37 byradius 200 km", "[]"),
        ("geosearch none frommember x byradius 200 km", "[]"),
        ("georadiusbymember none x y z", "[]"),
        ("geosearch g fromlonlat 15 -37 byradius 200 km", "[]"),
    ]);
}

/// Answers of Valkey 9.
#[test]
fn places_are_found_in_polygons() {
    let mut db = sicily();
    db.check(&[
        (
            "geosearch g bypolygon 3 12 36 17 36 14 40 withdist",
            r#"[["mid", "34232.7453"], ["Palermo", "120941.1765"], ["Catania", "68186.4700"]]"#,
        ),
        ("geosearch g bypolygon 3 12 36 17 36 14 40 desc count 1", r#"["Palermo"]"#),
        ("geosearch g bypolygon 2 1 1 2 2", "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"),
        ("geosearch g bypolygon 3 1 1 2 2 3", "-ERR GEOSEARCH BYPOLYGON must have at least 3 vertices"),
        ("geosearch g bypolygon x 1 1 2 2 3", "-ERR invalid number of vertices"),
        ("geosearch g bypolygon 99999999999 1 1 2 2 3", "-ERR invalid number of vertices"),
        ("geosearch g bypolygon 3 1 1 2 2 3 x", "-ERR value is not a valid float"),
        ("geosearch g frommember mid bypolygon 3 12 36 17 36 14 40", "-ERR syntax error"),
        ("geosearch g bypolygon 3 12 36 17 36 14 40 frommember mid", "-ERR syntax error"),
        ("geosearch g bypolygon 3 12 36 17 36 14 40 byradius 1 km", "-ERR syntax error"),
        ("geosearchstore d g bypolygon 3 12 36 17 36 14 40 storedist", "3"),
        ("zrange d 0 0", r#"["mid"]"#),
    ]);
}

#[test]
fn results_are_stored() {
    Db::both(|mut db| {
        db.check(&[
            (SICILY, "4"),
            ("geosearchstore d g fromlonlat 15 37 byradius 100 km", "1"),
            ("zscore d Catania", "\"3479447370796909\""),
            ("geosearchstore d g fromlonlat 15 37 byradius 200 km storedist", "3"),
            ("zrange d 0 -1", r#"["Catania", "mid", "Palermo"]"#),
            ("zrangebyscore d 56 57", r#"["Catania"]"#),
            ("expire d 100", "1"),
            ("georadius g 15 37 200 km store e storedist d count 2", "2"),
            ("ttl d", "-1"),
            ("exists e", "0"),
            ("georadiusbymember g Catania 1 km storedist e store d", "1"),
            ("zrange d 0 -1", r#"["Catania"]"#),
            ("georadius g 0 0 1 m store d", "0"),
            ("exists d", "0"),
            ("geosearchstore g none frommember x bybox 1 1 m", "0"),
            ("exists g", "0"),
        ]);
    });
}

#[test]
fn results_are_told_as_they_are() {
    let mut db = sicily();
    let told = |db: &Db| -> Vec<Vec<u8>> {
        db.effects.iter().map(|words| words.args().iter().collect::<Vec<_>>().join(&b' ')).collect()
    };
    db.line("geosearchstore d g fromlonlat 0xf 37 byradius 0x64 km");
    assert_eq!(told(&db), [&b"DEL d"[..], b"ZADD d 3479447370796909 Catania"]);
    db.line("geosearchstore d g fromlonlat 15 37 byradius 200 km count 1");
    assert_eq!(told(&db), [&b"DEL d"[..], b"ZADD d 3479447370796909 Catania"]);
    db.line("geosearchstore d g bypolygon 3 0 0 0 1 1 1");
    assert_eq!(told(&db), [b"DEL d"]);
    db.events();
    db.line("georadius g 15 37 100 km store d");
    assert!(db.events().contains(&"georadiusstore:d".to_owned()));
    db.line("geosearchstore d g fromlonlat 15 37 byradius 100 km");
    assert!(db.events().contains(&"geosearchstore:d".to_owned()));
}

#[test]
fn wrong_words_are_refused() {
    let mut db = sicily();
    let from = "-ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GeoSearch";
    let by = "-ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for geosearch";
    let stores = "is not compatible with WITHDIST, WITHHASH and WITHCOORD options";
    db.check(&[
        ("GeoSearch g byradius 1 km asc asc", from),
        ("geosearch g fromlonlat 1 1 asc asc", by),
        (
            "geosearch g fromlonlat 200 1 byradius 1 km",
            "-ERR invalid longitude,latitude pair 200.000000,1.000000",
        ),
        ("geosearch g fromlonlat 1 1 byradius -1 km", "-ERR radius cannot be negative"),
        ("geosearch g fromlonlat 1 1 byradius x km", "-ERR need numeric radius"),
        ("geosearch g fromlonlat 1 1 bybox x 1 km", "-ERR need numeric width"),
        ("geosearch g fromlonlat 1 1 bybox 1 x km", "-ERR need numeric height"),
        ("geosearch g fromlonlat 1 1 bybox 1 -1 km", "-ERR height or width cannot be negative"),
        (
            "geosearch g fromlonlat 1 1 bybox 1 1 x",
            "-ERR unsupported unit provided. please use M, KM, FT, MI",
        ),
        ("geosearch g fromlonlat 1 1 byradius 1 km any", "-ERR the ANY argument requires COUNT argument"),
        ("geosearch g fromlonlat 1 1 byradius 1 km count 0", "-ERR COUNT must be > 0"),
        ("geosearch g fromlonlat 1 1 byradius 1 km count x", "-ERR value is not an integer or out of range"),
        ("geosearch g fromlonlat 1 1 byradius 1 km count", "-ERR syntax error"),
        ("geosearch g fromlonlat 1 1 byradius 1 km storedist", "-ERR syntax error"),
        ("geosearch g frommember none byradius 1 km", "-ERR could not decode requested zset member"),
        ("geosearch g frommember mid fromlonlat 1 1 byradius 1 km", "-ERR syntax error"),
        ("geosearch g frommember mid bybox 1 1 m byradius 1 km", "-ERR syntax error"),
        (
            "geosearchstore d g frommember mid byradius 1 km withdist",
            &format!("-ERR GEOSEARCHSTORE {stores}"),
        ),
        ("georadius g 15 37 1 km store d withdist", &format!("-ERR STORE option in GEORADIUS {stores}")),
        ("georadius_ro g 15 37 1 km store d", "-ERR syntax error"),
        ("georadius g 15 37 1 km store", "-ERR syntax error"),
        ("georadiusbymember g none 1 km", "-ERR could not decode requested zset member"),
        ("set s x", "OK"),
        ("geosearch s a b c d e", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
    ]);
}

#[test]
fn the_key_of_the_last_store_is_the_one_that_counts() {
    let keys = |line: &str| {
        let owned = OwnedArgs::from_slices(&split(line).iter().map(Vec::as_slice).collect::<Vec<_>>());
        let args = owned.args();
        let mut keys = Vec::new();
        let command = registry::find(args.at(0)).expect("a command");
        command.each_key(args, &mut |i, _| keys.push(String::from_utf8_lossy(args.at(i)).into_owned()));
        keys
    };
    assert_eq!(keys("georadius k 1 2 3 m store a storedist b"), ["k", "b"]);
    assert_eq!(keys("georadius k 1 2 3 m storedist a count 2 store b asc"), ["k", "b"]);
    assert_eq!(keys("georadius k 1 2 3 m store store store"), ["k", "store"]);
    assert_eq!(keys("georadius k 1 2 3 m asc"), ["k"]);
    assert_eq!(keys("georadiusbymember k m 3 m StoreDist a"), ["k", "a"]);
    assert_eq!(keys("geosearchstore d k frommember m byradius 1 m"), ["d", "k"]);
}

/// Places all over the earth, at the poles and at the date line too, compared with a look at each of them.
#[test]
fn searches_find_what_a_look_at_every_place_finds() {
    let mut db = Db::new();
    let mut state = 7u64;
    let mut part = |max: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as f64 / f64::from(u32::MAX >> 1) * 2.0 - 1.0) * max
    };
    for i in 0..2000 {
        db.run(&["geoadd", "g", &part(180.0).to_string(), &part(85.0).to_string(), &format!("m{i}")]);
    }
    db.run(&["geoadd", "g", "0", "0", "centre"]);
    for _ in 0..60 {
        // Away from the date line, beyond which real servers do not look either.
        let (lon, lat) = (part(100.0).to_string(), part(60.0).to_string());
        let radius = part(2500.0).abs();
        db.run(&["geoadd", "g", &lon, &lat, "centre"]);
        let mut expected = Vec::new();
        for i in 0..2000 {
            let member = format!("m{i}");
            let text = db.run(&["geodist", "g", "centre", &member, "km"]);
            if text.trim_matches('"').parse::<f64>().expect("a number") <= radius {
                expected.push(member);
            }
        }
        let radius = radius.to_string();
        let reply = db.call(&["geosearch", "g", "frommember", "centre", "byradius", &radius, "km"]);
        let found = reply.elements().expect("an array");
        let mut found: Vec<String> = found
            .iter()
            .map(|member| String::from_utf8_lossy(member.text().expect("text")).into_owned())
            .filter(|member| member != "centre")
            .collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{lon} {lat} {radius}");
    }
}

#[test]
fn a_long_search_is_foreseen_and_an_early_end_is_cheap() {
    let mut db = Db::new();
    for i in 0..3000 {
        db.run(&["geoadd", "g", &format!("{}", f64::from(i) / 1e5), "1", &format!("m{i}")]);
    }
    let foreseen = |db: &Db, line: &str| {
        let owned = OwnedArgs::from_slices(&split(line).iter().map(Vec::as_slice).collect::<Vec<_>>());
        let command = registry::find(owned.args().at(0)).expect("a command");
        let view = keyspace::View::whole(&db.keyspace, 0, db.now_ms);
        (command.steps(&view, owned.args()), command.reply_steps(&view, owned.args()))
    };
    let all = "geosearch g fromlonlat 0 1 byradius 100 km";
    let (steps, reply) = foreseen(&db, all);
    assert!(steps >= 3000 * 4 && reply == 3000, "{steps} {reply}");
    let (steps, reply) = foreseen(&db, &format!("{all} count 2 any withdist"));
    assert!(steps < 500 && reply == 10, "{steps} {reply}");
    let (steps, _) = foreseen(&db, "geosearch g fromlonlat 90 1 byradius 1 km");
    assert!(steps < 100, "{steps}");
    db.steps = 300;
    assert!(db.line(&format!("{all} count 2 any")).starts_with("[\"m"));
    assert_eq!(db.line(all), "-ERR internal: run dropped");
    db.steps = 1_000_000;
    assert_eq!(
        db.call(&["geosearch", "g", "fromlonlat", "0", "1", "byradius", "100", "km"])
            .elements()
            .map(<[_]>::len),
        Some(3000)
    );
    assert!(db.streamed && db.most < 2048, "{}", db.most);
}

/// The last of several destinations is declared, and it is the one written.
#[test]
fn the_destination_that_is_declared_is_the_one_written() {
    for (options, destination) in [
        ("store a", "a"),
        ("store a store b", "b"),
        ("store a storedist b", "b"),
        ("storedist a store b", "b"),
        ("withdist store", ""),
        ("store store", "store"),
    ] {
        let line = format!("georadius g 15 37 200 km {options}");
        let words = OwnedArgs::from_slices(&split(&line).iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>());
        let mut keys = Vec::new();
        registry::find(b"georadius").expect("a command").each_key(words.args(), &mut |i, _| {
            keys.push(String::from_utf8_lossy(words.args().at(i)).into_owned());
        });
        let expected: Vec<&str> = ["g", destination].into_iter().filter(|key| !key.is_empty()).collect();
        assert_eq!(keys, expected, "{options}");
        if !destination.is_empty() {
            let mut db = sicily();
            assert_eq!(db.line(&line), "3", "{options}");
            assert_eq!(db.line(&format!("zcard {destination}")), "3", "{options}");
        }
    }
}
