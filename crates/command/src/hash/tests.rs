//! The hash commands, against Redis's answers.

use crate::testing::Db;

const NOW: u64 = 1_700_000_000_000;

/// Notifications since the last call, without those of failed look-ups.
fn told(db: &mut Db) -> String {
    let mut events = db.events();
    events.retain(|event| !event.starts_with("keymiss:"));
    events.join(" ")
}

/// Makes a field that expired, one that will, and one that does not. Nothing is swept.
fn with_expiring(db: &mut Db) {
    db.check(&[
        ("hset h gone 1 soon 2 stays 3", "3"),
        ("hpexpire h 10 fields 1 gone", "[1]"),
        ("hpexpire h 5000 fields 1 soon", "[1]"),
    ]);
    db.now_ms += 10;
    db.events();
}

/// Makes a hash with only expired fields.
fn with_nothing_left(db: &mut Db) {
    db.check(&[("hset h a 1 b 2", "2"), ("hpexpire h 10 fields 2 a b", "[1, 1]")]);
    db.now_ms += 10;
    db.events();
}

#[test]
fn fields_are_set_read_and_removed() {
    Db::both(|mut db| {
        db.check(&[
            ("hset h a 1 b 2 a 3", "2"),
            ("hset h a 1 b", "-ERR wrong number of arguments for 'hset' command"),
            ("hmset h a 1 b", "-ERR wrong number of arguments for 'hmset' command"),
            ("hmset h a 1 b 22", "OK"),
            ("hsetnx h a 5", "0"),
            ("hsetnx h n 5", "1"),
            ("hget h a", "\"1\""),
            ("hget h zz", "nil"),
            ("hmget h a zz b", "[\"1\", nil, \"22\"]"),
            ("hmget none a b", "[nil, nil]"),
            ("hlen h", "3"),
            ("hlen none", "0"),
            ("hstrlen h b", "2"),
            ("hstrlen h zz", "0"),
            ("hexists h a", "1"),
            ("hexists none a", "0"),
            ("hgetall h", "[\"a\", \"1\", \"b\", \"22\", \"n\", \"5\"]"),
            ("hkeys h", "[\"a\", \"b\", \"n\"]"),
            ("hvals h", "[\"1\", \"22\", \"5\"]"),
            ("hgetall none", "[]"),
            ("hdel h a zz a", "1"),
            ("hdel h a", "0"),
            ("hdel h b n", "2"),
            ("exists h", "0"),
        ]);
        assert_eq!(told(&mut db), "new:h hset:h hset:h hset:h hdel:h hdel:h del:h");
    });
}

#[test]
fn another_type_is_refused() {
    let mut db = Db::new();
    db.check(&[("set s x", "OK")]);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    for line in [
        "hset s a 1",
        "hsetnx s a 1",
        "hget s a",
        "hmget s a",
        "hgetall s",
        "hlen s",
        "hdel s a",
        "hincrby s a 1",
        "hincrbyfloat s a 1",
        "hrandfield s",
        "hrandfield s 2",
        "hscan s 0 count 0",
        "hgetdel s fields 2 a",
        "hexpire s abc foo 1 a",
        "httl s foo 1 a",
        "hpersist s foo 1 a",
        "hgetex s ex abc fields 1 a",
        "hsetex s fields 1 a 1",
    ] {
        db.check(&[(line, wrong)]);
    }
    db.check(&[
        ("hincrby s a abc", "-ERR value is not an integer or out of range"),
        ("hrandfield s abc", "-ERR value is not an integer or out of range"),
        ("hsetex s ex abc fields 1 a 1", "-ERR value is not an integer or out of range"),
        ("hset s a", "-ERR wrong number of arguments for 'hset' command"),
    ]);
}

#[test]
fn a_hash_is_a_map_in_resp3() {
    let mut db = Db::new().resp3();
    db.check(&[
        ("hset h a 1", "1"),
        ("hgetall h", "{\"a\": \"1\"}"),
        ("hgetall none", "{}"),
        ("hkeys h", "[\"a\"]"),
        ("hscan h 0", "[\"0\", [\"a\", \"1\"]]"),
        ("hrandfield h 5 withvalues", "[[\"a\", \"1\"]]"),
        ("hrandfield h -2 withvalues", "[[\"a\", \"1\"], [\"a\", \"1\"]]"),
        ("hrandfield none 2 withvalues", "[]"),
        ("hincrbyfloat h a 1.5", "\"2.5\""),
        ("hget h b", "nil"),
    ]);
}

#[test]
fn values_are_counted_up() {
    Db::both(|mut db| {
        db.check(&[
            ("hincrby h x 5", "5"),
            ("hincrby h x -7", "-2"),
            ("hset h s foo m 9223372036854775807 sp \" 3\" inf inf", "4"),
            ("hincrby h s 1", "-ERR hash value is not an integer"),
            ("hincrby h sp 1", "-ERR hash value is not an integer"),
            ("hincrby h m 1", "-ERR increment or decrement would overflow"),
            ("hincrbyfloat h x 1.5", "\"-0.5\""),
        ]);
        assert_eq!(db.effect_lines(), ["HSET h x -0.5"]);
        db.check(&[
            ("hincrbyfloat h x abc", "-ERR value is not a valid float"),
            ("hincrbyfloat h x nan", "-ERR value is not a valid float"),
            ("hincrbyfloat h x inf", "-ERR value is NaN or Infinity"),
            ("hincrbyfloat h s 1", "-ERR hash value is not a float"),
            ("hincrbyfloat h inf 1", "-ERR increment would produce NaN or Infinity"),
            ("hincrbyfloat h y 5.0e3", "\"5000\""),
        ]);
        assert_eq!(told(&mut db), "new:h hincrby:h hincrby:h hset:h hincrbyfloat:h hincrbyfloat:h");
        db.check(&[("hpexpireat h 1800000000000 fields 1 x", "[1]"), ("hincrbyfloat h x 0.5", "\"0\"")]);
        let told = |text: &str| [format!("HSET h x {text}"), "HPEXPIREAT h 1800000000000 FIELDS 1 x".into()];
        assert_eq!(db.effect_lines(), told("0"));
        db.line("hincrby h x 7");
        assert_eq!(db.effect_lines(), told("7"));
        db.check(&[("hincrby h fresh 7", "7")]);
        assert!(db.effect_lines().is_empty());
    });
}

#[test]
fn counting_keeps_an_expiry_and_setting_drops_it() {
    let mut db = Db::new();
    db.check(&[
        ("hset h a 1", "1"),
        ("hexpire h 10 fields 1 a", "[1]"),
        ("hincrby h a 2", "3"),
        ("hincrbyfloat h a 2", "\"5\""),
        ("httl h fields 1 a", "[10]"),
        ("hset h a 2", "0"),
        ("httl h fields 1 a", "[-1]"),
    ]);
}

#[test]
fn random_fields() {
    let mut db = Db::new();
    db.check(&[
        ("hset h a 1 b 2 c 3", "3"),
        ("hrandfield h 10", "[\"a\", \"b\", \"c\"]"),
        ("hrandfield h 10 withvalues", "[\"a\", \"1\", \"b\", \"2\", \"c\", \"3\"]"),
        ("hrandfield h 0", "[]"),
        ("hrandfield none", "nil"),
        ("hrandfield none 3", "[]"),
        ("hrandfield h abc", "-ERR value is not an integer or out of range"),
        ("hrandfield h 2 foo", "-ERR syntax error"),
        ("hrandfield h 2 withvalues foo", "-ERR syntax error"),
        ("hrandfield h 9223372036854775807 withvalues", "-ERR value is out of range"),
        (
            "hrandfield none -9223372036854775808",
            "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ),
    ]);
    assert_eq!(db.line("hrandfield h -7").matches('"').count(), 14);
    assert_eq!(db.line("hrandfield h -7 withvalues").matches('"').count(), 28);
    assert_eq!(db.line("hrandfield h 2").matches('"').count(), 4);
    let one = db.line("hrandfield h");
    assert!(["\"a\"", "\"b\"", "\"c\""].contains(&&one[..]), "{one}");
}

#[test]
fn a_scan_filters_and_forgives_options_without_a_hash() {
    let mut db = Db::new();
    db.check(&[
        ("hset h a 1 ab 2", "2"),
        ("hscan h 0", "[\"0\", [\"a\", \"1\", \"ab\", \"2\"]]"),
        ("hscan h 0 novalues", "[\"0\", [\"a\", \"ab\"]]"),
        ("hscan h 0 match ?b novalues count 5", "[\"0\", [\"ab\"]]"),
        ("hscan h 0 count 0", "-ERR syntax error"),
        ("hscan h abc", "-ERR invalid cursor"),
        ("hscan none abc", "-ERR invalid cursor"),
        ("hscan none 0 foo", "[\"0\", []]"),
    ]);
}

#[test]
fn large_hashes_stream_and_are_scanned_whole() {
    let mut db = Db::new();
    for i in 0..3000 {
        db.run(&["hset", "h", &format!("field{i}"), &i.to_string()]);
    }
    for (line, quotes) in
        [("hgetall h", 12000), ("hkeys h", 6000), ("hvals h", 6000), ("hrandfield h 3000 withvalues", 12000)]
    {
        assert_eq!(db.line(line).matches('"').count(), quotes, "{line}");
        assert!(db.streamed, "{line}");
    }
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    loop {
        let reply = db.run(&["hscan", "h", &cursor, "count", "50", "novalues"]);
        let mut words = reply.split('"').skip(1).step_by(2);
        cursor = words.next().unwrap().to_owned();
        seen.extend(words.map(str::to_owned));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 3000);
}

#[test]
fn fields_are_taken_with_their_values() {
    Db::both(|mut db| {
        db.check(&[
            ("hset r a 1 b 2 c 3", "3"),
            ("hgetdel r fields 2 a a", "[\"1\", nil]"),
            ("hgetdel r fields 2 a", "-ERR The `numfields` parameter must match the number of arguments"),
            ("hgetdel r fields 0 a", "-ERR Number of fields must be a positive integer"),
            ("hgetdel r foo 1 a", "-ERR Mandatory argument FIELDS is missing or not at the right position"),
            ("hgetdel none fields 2 a b", "[nil, nil]"),
            ("hgetdel r fields 1 zz", "[nil]"),
            ("hgetdel r fields 3 b zz c", "[\"2\", nil, \"3\"]"),
            ("exists r", "0"),
        ]);
        assert_eq!(told(&mut db), "new:r hset:r hdel:r hdel:r del:r");
    });
}

#[test]
fn conditions_decide_which_fields_expire() {
    Db::both(|mut db| {
        db.check(&[
            ("hset h a 1 b 2 c 3", "3"),
            ("hexpire h 10 fields 3 a b zz", "[1, 1, -2]"),
            ("hexpire h 10 nx fields 2 a c", "[0, 1]"),
        ]);
        assert_eq!(db.effect_lines(), [format!("HPEXPIREAT h {} FIELDS 1 c", NOW + 10_000)]);
        db.check(&[
            ("hexpire h 10 xx fields 1 a", "[1]"),
            ("hexpire h 5 gt fields 1 a", "[0]"),
            ("hexpire h 10 gt fields 1 a", "[0]"),
            ("hexpire h 500 gt fields 1 a", "[1]"),
            ("hexpire h 5000 lt fields 1 a", "[0]"),
            ("hexpire h 50 LT fields 1 a", "[1]"),
            ("httl h fields 3 a b zz", "[50, 10, -2]"),
            ("hpersist h fields 3 a zz a", "[1, -2, -1]"),
            ("hexpire h 50 gt fields 1 a", "[0]"),
            ("hpexpire h 1400 lt fields 2 a a", "[1, 0]"),
            ("httl h fields 1 a", "[2]"),
            ("hpttl h fields 1 a", "[1400]"),
            ("hexpiretime h fields 1 a", "[1700000002]"),
            ("hpexpiretime h fields 1 a", "[1700000001400]"),
            ("httl none fields 2 a b", "[-2, -2]"),
            ("hexpire none 50 fields 2 a b", "[-2, -2]"),
            ("hpersist none fields 1 a", "[-2]"),
            ("object encoding h", "\"listpackex\""),
        ]);
    });
}

#[test]
fn times_and_counts_are_checked() {
    let mut db = Db::new();
    db.check(&[("hset h a 1", "1")]);
    let count = "-ERR The `numfields` parameter must match the number of arguments";
    let fields = "-ERR Mandatory argument FIELDS is missing or not at the right position";
    let positive = "-ERR Parameter `numFields` should be greater than 0";
    let invalid = |name: &str| format!("-ERR invalid expire time in '{name}' command");
    db.check(&[
        ("hexpire h abc foo 1 a", "-ERR value is not an integer or out of range"),
        ("hexpire h -1 foo fields 1 a", "-ERR invalid expire time, must be >= 0"),
        ("hexpire h 10 fields 2 a", count),
        ("hexpire h 10 fields 1 a nx", count),
        ("hexpire h 10 fields 0 a", positive),
        ("hexpire h 10 fields fields 1 a", positive),
        ("hexpire h 10 nx xx fields 1 a", fields),
        ("hexpire h 10 foo fields 1 a", fields),
        ("hpexpireat h 70368744177663 fields 1 a", "[1]"),
        ("hpexpireat h 70368744177664 fields 1 a", &invalid("hpexpireat")),
        ("HEXPIRE h 9223372036854775807 fields 1 a", &invalid("hexpire")),
        ("httl h fields 0 a", "-ERR Number of fields must be a positive integer"),
        ("httl h 1 fields 1 a", fields),
        ("hgetex h ex 10 px 10 fields 1 a", fields),
        ("hgetex h ex fields 1 a", "-ERR value is not an integer or out of range"),
        ("hgetex h ex 10 fields", "-ERR wrong number of arguments for 'hgetex' command"),
        ("hgetex h px 70368744177663 fields 1 a", &invalid("hgetex")),
        ("hgetex h fields 1 a persist", count),
    ]);
}

#[test]
fn a_time_that_has_passed_removes_fields_at_once() {
    Db::both(|mut db| {
        db.check(&[("hset g x 1 y 2", "2"), ("hpexpireat g 1 nx fields 2 x x", "[2, -2]")]);
        assert_eq!(db.effect_lines(), ["HDEL g x"]);
        db.check(&[
            ("hpexpireat g 1 gt fields 1 y", "[0]"),
            ("hpexpireat g 1 xx fields 1 y", "[0]"),
            ("hexpire g 0 fields 2 y zz", "[2, -2]"),
            ("exists g", "0"),
        ]);
        assert_eq!(told(&mut db), "new:g hset:g hdel:g hdel:g del:g");
    });
}

/// Valkey lets fields expire later than Redis does, and its log says so.
#[test]
fn a_replayed_time_may_be_later_than_a_client_may_set() {
    let mut db = Db::new();
    let late = "hpexpireat h 9223372036854775807 fields 1 a";
    db.check(&[("hset h a 1", "1"), (late, "-ERR invalid expire time in 'hpexpireat' command")]);
    db.caller.in_replay = true;
    db.check(&[(late, "[1]"), ("hpexpiretime h fields 1 a", "[9223372036854775807]"), ("hget h a", "\"1\"")]);
}

#[test]
fn a_replayed_time_that_has_passed_is_kept() {
    let mut db = Db::new();
    db.caller.in_replay = true;
    db.check(&[
        ("hset h a 1", "1"),
        ("hpexpireat h 1 fields 1 a", "[1]"),
        ("hpersist h fields 1 a", "[1]"),
        ("hget h a", "\"1\""),
    ]);
}

#[test]
fn an_expiry_is_taken_off_wherever_the_log_is_read() {
    Db::both(|mut db| {
        db.check(&[("hset h a 1 b 2", "2"), ("hpexpire h 500 fields 1 a", "[1]")]);
        db.check(&[("hpersist h fields 2 a b", "[1, -1]")]);
        let told = ["HPEXPIREAT h 70368744177663 FIELDS 1 a", "HPERSIST h FIELDS 1 a"];
        assert_eq!(db.effect_lines(), told);
    });
}

#[test]
fn values_are_read_and_made_to_expire() {
    Db::both(|mut db| {
        db.check(&[
            ("hset h a 1 b 2 c 3", "3"),
            ("hgetex h fields 2 a zz", "[\"1\", nil]"),
            ("hgetex h ex 10 fields 2 a zz", "[\"1\", nil]"),
        ]);
        assert_eq!(db.effect_lines(), [format!("HPEXPIREAT h {} FIELDS 1 a", NOW + 10_000)]);
        db.check(&[("hgetex h persist fields 2 a b", "[\"1\", \"2\"]")]);
        // A reader whose clock is behind the old time must still find the field.
        let persisted = ["HPEXPIREAT h 70368744177663 FIELDS 1 a", "HPERSIST h FIELDS 1 a"];
        assert_eq!(db.effect_lines(), persisted);
        db.check(&[
            ("hgetex h persist fields 1 a", "[\"1\"]"),
            ("hgetex none ex 10 fields 2 a b", "[nil, nil]"),
            ("hgetex h exat 1 fields 3 a b a", "[\"1\", \"2\", nil]"),
        ]);
        assert_eq!(db.effect_lines(), ["HDEL h a b"]);
        db.check(&[("hgetex h pxat 0 fields 1 c", "[\"3\"]"), ("exists h", "0")]);
        assert_eq!(told(&mut db), "new:h hset:h hexpire:h hpersist:h hdel:h hdel:h del:h");
    });
}

#[test]
fn values_are_set_with_an_expiry() {
    Db::both(|mut db| {
        let fnx = "-ERR Only one of FXX or FNX arguments can be specified";
        let time = "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
        let arity = "-ERR wrong number of arguments for 'hsetex' command";
        db.check(&[
            ("hset h a 1", "1"),
            ("hsetex h ex 10 fields 1 a 5", "1"),
            ("httl h fields 1 a", "[10]"),
            ("hsetex h keepttl fields 1 a 7", "1"),
            ("httl h fields 1 a", "[10]"),
            ("hsetex h fields 1 a 6", "1"),
            ("httl h fields 1 a", "[-1]"),
            ("hsetex h fnx fields 2 q 7 a 8", "0"),
            ("hsetex h fxx fields 2 a 7 q 8", "0"),
            ("hsetex none fxx fields 1 a 1", "0"),
            ("hsetex h fxx fxx fields 1 a 7", fnx),
            ("hsetex h ex 10 keepttl fields 1 a 7", time),
            ("hsetex h nx fields 1 a 7", "-ERR unknown argument: nx"),
            ("hsetex h foo 1 a 1", "-ERR unknown argument: foo"),
            ("hsetex h ex -1 foo 1 a 2", "-ERR invalid expire time, must be >= 0"),
            ("hsetex h ex abc fields 0 a 2", "-ERR value is not an integer or out of range"),
            ("hsetex h fields 0 a 1", "-ERR invalid number of fields"),
            ("hsetex h fields 2 a 1", arity),
            ("hsetex h fields 1 a 1 ex 10", arity),
            ("hsetex h ex 10 fxx fields 0", arity),
            ("hget h a", "\"6\""),
            ("hsetex h fxx px 100 fields 2 a 7 a 8", "1"),
        ]);
        assert_eq!(
            db.effect_lines(),
            ["HSET h a 7 a 8".to_string(), format!("HPEXPIREAT h {} FIELDS 2 a a", NOW + 100)]
        );
        db.check(&[("hsetex h keepttl fields 2 a 8 b 9", "1")]);
        assert_eq!(
            db.effect_lines(),
            ["HSET h a 8 b 9".to_string(), format!("HPEXPIREAT h {} FIELDS 1 a", NOW + 100)]
        );
        db.check(&[("hsetex h fields 1 b 9", "1")]);
        assert_eq!(db.effect_lines(), ["HSET h b 9"]);
        db.line("hdel h b");
        db.events();
        db.check(&[("hget h a", "\"8\""), ("hsetex h ex 0 fields 1 a 7", "1"), ("exists h", "0")]);
        assert_eq!(db.effect_lines().len(), 0);
        assert_eq!(told(&mut db), "hset:h hdel:h del:h");
        db.check(&[("hsetex h exat 1 fields 1 c 7", "1"), ("exists h", "0")]);
        // Over an overlay the key never existed.
        let told = told(&mut db);
        assert_eq!(told.strip_prefix("new:h ").unwrap_or(&told), "hset:h hdel:h del:h");
    });
}

#[test]
fn expired_fields_are_absent_to_readers() {
    Db::both(|mut db| {
        with_expiring(&mut db);
        db.check(&[
            ("hlen h", "2"),
            ("hget h gone", "nil"),
            ("hmget h gone soon", "[nil, \"2\"]"),
            ("hexists h gone", "0"),
            ("hstrlen h gone", "0"),
            ("hgetall h", "[\"soon\", \"2\", \"stays\", \"3\"]"),
            ("hkeys h", "[\"soon\", \"stays\"]"),
            ("hscan h 0 novalues", "[\"0\", [\"soon\", \"stays\"]]"),
            ("hrandfield h 5", "[\"soon\", \"stays\"]"),
            ("hpttl h fields 2 gone soon", "[-2, 4990]"),
            ("hgetex h fields 1 gone", "[nil]"),
        ]);
        assert_eq!(told(&mut db), "");
    });
}

#[test]
fn a_hash_with_nothing_left_looks_empty() {
    Db::both(|mut db| {
        with_nothing_left(&mut db);
        db.check(&[
            ("hlen h", "0"),
            ("hgetall h", "[]"),
            ("hrandfield h", "nil"),
            ("hrandfield h 2", "[]"),
            ("hscan h 0", "[\"0\", []]"),
            ("hsetex h fxx fields 1 a 1", "0"),
        ]);
    });
}

#[test]
fn writes_remove_expired_fields_they_meet() {
    for (line, reply, events, left) in [
        ("hset h gone 5", "1", "hexpired:h hset:h", 3),
        ("hset h x 5", "1", "hexpired:h hset:h", 3),
        ("hsetnx h gone 5", "1", "hexpired:h hset:h", 3),
        ("hincrby h gone 5", "5", "hexpired:h hincrby:h", 3),
        ("hincrbyfloat h gone 5", "\"5\"", "hexpired:h hincrbyfloat:h", 3),
        ("hdel h gone", "0", "hexpired:h", 2),
        ("hdel h gone soon stays", "2", "hexpired:h hdel:h del:h", 0),
        ("hgetdel h fields 2 gone soon", "[nil, \"2\"]", "hexpired:h hdel:h", 1),
        ("hpersist h fields 2 gone soon", "[-2, 1]", "hexpired:h hpersist:h", 2),
        ("hexpire h 9 fields 2 gone soon", "[-2, 1]", "hexpired:h hexpire:h", 2),
        ("hgetex h ex 9 fields 2 gone soon", "[nil, \"2\"]", "hexpired:h hexpire:h", 2),
        ("hsetex h fnx fields 1 gone 5", "1", "hexpired:h hset:h", 3),
        ("hsetex h keepttl fields 1 gone 5", "1", "hexpired:h hset:h", 3),
    ] {
        Db::both(|mut db| {
            with_expiring(&mut db);
            db.check(&[(line, reply)]);
            assert_eq!(db.effect_lines()[0], "HDEL h gone", "{line}");
            assert_eq!(told(&mut db), events, "{line}");
            db.now_ms = 1_700_000_000_010;
            db.check(&[("hlen h", &left.to_string())]);
        });
    }
}

#[test]
fn a_write_that_also_purged_is_logged_behind_the_removals() {
    let mut db = Db::new();
    with_expiring(&mut db);
    db.check(&[("hset h x 5", "1")]);
    assert_eq!(db.effect_lines(), ["HDEL h gone", "hset h x 5"]);
}

#[test]
fn a_hash_emptied_by_expiry_goes_or_is_filled_again() {
    for (line, reply, events, there) in [
        ("hdel h a", "0", "hexpired:h del:h", "0"),
        ("hgetdel h fields 1 a", "[nil]", "hexpired:h del:h", "0"),
        ("hpersist h fields 1 a", "[-2]", "hexpired:h del:h", "0"),
        ("hexpire h 10 fields 1 a", "[-2]", "hexpired:h del:h", "0"),
        ("hgetex h persist fields 1 a", "[nil]", "hexpired:h del:h", "0"),
        ("hset h a 5", "1", "hexpired:h hset:h", "1"),
        ("hincrby h a 5", "5", "hexpired:h hincrby:h", "1"),
    ] {
        Db::both(|mut db| {
            with_nothing_left(&mut db);
            db.check(&[(line, reply)]);
            assert_eq!(told(&mut db), events, "{line}");
            db.check(&[("exists h", there)]);
        });
    }
}

#[test]
fn a_write_finds_its_field_among_many_expired_ones() {
    let mut db = Db::new();
    let names: Vec<String> = (0..1000).map(|i| format!("f{i}")).collect();
    let mut words = vec!["hsetex", "h", "px", "10", "fields", "1000"];
    words.extend(names.iter().flat_map(|name| [&name[..], "7"]));
    assert_eq!(db.run(&words), "1");
    db.now_ms += 10;
    for name in names.iter().rev().take(20) {
        assert_eq!(db.run(&["hincrby", "h", name, "1"]), "1");
    }
    db.check(&[("hlen h", "20")]);
    assert_eq!(db.line("hgetall h").matches('"').count(), 80);
}

/// A read pays for expired fields that are not swept: in pieces that are charged for, and only for fields
/// that exist.
#[test]
fn expired_fields_are_passed_in_pieces() {
    Db::both(|mut db| {
        let fields = |range: std::ops::Range<usize>| range.map(|i| format!("f{i:04}")).collect::<Vec<_>>();
        let mut set = vec!["hset".to_owned(), "h".into()];
        set.extend(fields(0..3000).into_iter().flat_map(|field| [field.clone(), field]));
        assert_eq!(db.run(&set.iter().map(String::as_str).collect::<Vec<_>>()), "3000");
        let expire = |db: &mut Db, range: std::ops::Range<usize>, ms: &str| {
            let (count, names) = (range.len().to_string(), fields(range));
            let words =
                ["hpexpire", "h", ms, "fields", &count].into_iter().chain(names.iter().map(String::as_str));
            db.run(&words.collect::<Vec<_>>());
        };
        expire(&mut db, 0..1280, "10");
        db.now_ms += 10;
        // 20 pieces of 64. HGETALL and its like are streamed after that.
        for (line, begin) in [("hlen h", "1720"), ("hgetall h", "["), ("hrandfield h 9999", "[")] {
            assert!(db.line(line).starts_with(begin), "{line}");
            assert!((20..24).contains(&db.looks), "{line}: {}", db.looks);
            assert!(db.most <= 64 * 16, "{line}: {}", db.most);
        }
        assert!(db.line("dump h").len() > 1720);
        assert!(db.looks >= 20 + 3000 / 64 && db.most <= 1000, "{} {}", db.looks, db.most);
        db.steps = 500;
        assert_eq!(db.line("hgetall h"), "-ERR internal: run dropped");
    });
    let mut db = Db::new();
    let pairs: String = (0..100_000).map(|i| format!(" {i} {i}")).collect();
    db.line(&format!("hset h{pairs}"));
    db.line("hpexpire h 10 fields 1 77");
    db.now_ms += 10;
    // One expired field does not send a count of the others to a worker.
    db.steps = 2000;
    db.check(&[("hlen h", "99999")]);
    assert!(db.line("hgetall h").len() > 1_000_000);
}

#[test]
fn few_fields_with_long_values_are_streamed() {
    Db::both(|mut db| {
        let long = "x".repeat(50_000);
        db.run(&["hset", "h", "a", &long, "b", &long, "c", "1"]);
        assert_eq!(db.line("hgetall h"), format!("[\"a\", \"{long}\", \"b\", \"{long}\", \"c\", \"1\"]"));
        assert!(db.streamed);
        db.run(&["zadd", "z", "1", &format!("a{long}"), "2", &format!("b{long}"), "3", "c"]);
        assert_eq!(db.line("zrange z 0 -1"), format!("[\"a{long}\", \"b{long}\", \"c\"]"));
        assert!(db.streamed);
        assert_eq!(db.line("zrange z 2 0 rev"), "[]");
        assert_eq!(db.line("zrange z 0 -1 rev"), format!("[\"c\", \"b{long}\", \"a{long}\"]"));
        db.run(&["sadd", "s", &format!("a{long}"), &format!("b{long}"), &format!("c{long}")]);
        assert_eq!(db.line("smembers s").len(), 3 * 50_005);
        assert!(db.streamed);
        db.check(&[("hset h2 a 1", "1"), ("hgetall h2", "[\"a\", \"1\"]")]);
        assert!(!db.streamed);
    });
}
