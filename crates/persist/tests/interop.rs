//! Files of real servers read here, and files written here read by them. Servers that are not on this machine
//! are left out, and it is said which.

mod peer;

use peer::{Contents, Peer, contents_of, read};
use persist::disk::RealDisk;
use persist::{Kept, SaveFile};
use rdb::Dialect;
use rdb::file::Format;
use std::path::Path;
use std::sync::Arc;
use value::Value;

/// Fills a server: every type and encoding, several databases, expiries, a library.
fn fill(peer: &mut Peer) {
    peer.run(&["CONFIG", "SET", "list-max-listpack-size", "32"]);
    // Keys are saved with how often they are used.
    peer.run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]);
    peer.run(&["SET", "str", "text"]);
    peer.run(&["SET", "empty", ""]);
    for (key, number) in [("int8", "-7"), ("int16", "3000"), ("int32", "-70000"), ("int64", "9000000000")] {
        peer.run(&["SET", key, number]);
    }
    peer.run(&["SET", "lzf", &"abcabcabd".repeat(5_000)]);
    peer.run(&["SET", &"long key ".repeat(50), "v"]);
    peer.run(&["SET", "expiring", "v", "PXAT", "4000000000000"]);
    peer.run(&["RPUSH", "list:small", "a", "2", "-300", ""]);
    let words: Vec<String> = (0..400).map(|i| format!("{i} word {}", "x".repeat(i % 40))).collect();
    let mut call = |command: &str, key: &str, words: &[String]| {
        let mut all = vec![command, key];
        all.extend(words.iter().map(String::as_str));
        peer.run(&all);
    };
    call("RPUSH", "list:quick", &words);
    call("RPUSH", "list:plain", &["y".repeat(20_000), "z".into()]);
    call("SADD", "set:ints", &(-20..20).map(|i: i64| (i * 1_000_003).to_string()).collect::<Vec<_>>());
    call("SADD", "set:pack", &words[..20]);
    call("SADD", "set:table", &words);
    let scored =
        |n: usize| words[..n].iter().enumerate().flat_map(|(i, word)| [format!("{}.5", i * i), word.clone()]);
    call("ZADD", "zset:pack", &scored(10).collect::<Vec<_>>());
    call("ZADD", "zset:list", &scored(400).collect::<Vec<_>>());
    call("ZADD", "zset:inf", &["inf", "a", "-inf", "b", "1e300", "c"].map(String::from));
    let fields = |n: usize| words[..n].iter().enumerate().flat_map(|(i, word)| [word.clone(), i.to_string()]);
    call("HSET", "hash:pack", &fields(10).collect::<Vec<_>>());
    call("HSET", "hash:table", &fields(400).collect::<Vec<_>>());
    peer.run(&["SELECT", "9"]);
    peer.run(&["SET", "other database", "v"]);
    peer.run(&["SELECT", "0"]);
    peer.run(&["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() return 7 end)"]);
}

fn fill_field_times(peer: &mut Peer) {
    for (key, fields) in [("hash:timed", 3), ("hash:timed:table", 600)] {
        for i in 0..fields {
            peer.run(&["HSET", key, &format!("f{i}"), &format!("v{i}")]);
            if i % 2 == 0 {
                let at = (4_000_000_000_000_u64 + i).to_string();
                peer.run(&["HPEXPIREAT", key, &at, "FIELDS", "1", &format!("f{i}")]);
            }
        }
    }
}

fn fill_stream(peer: &mut Peer) {
    for i in 1..300 {
        peer.run(&["XADD", "stream", &format!("{i}-1"), "f", &format!("v{i}")]);
    }
    peer.run(&["XGROUP", "CREATE", "stream", "group", "0"]);
    peer.run(&["XREADGROUP", "GROUP", "group", "consumer", "COUNT", "5", "STREAMS", "stream", ">"]);
    peer.run(&["XGROUP", "CREATE", "stream", "idle", "$"]);
}

#[test]
fn files_of_real_servers_are_read() {
    for (name, has_field_times) in peer::SERVERS {
        let Some(mut peer) = Peer::start(name, None) else { continue };
        fill(&mut peer);
        if *has_field_times {
            fill_field_times(&mut peer);
        }
        let expected = peer.contents();
        assert!(expected.keys.len() > 20, "{name}");
        fill_stream(&mut peer);
        peer.run(&["SAVE"]);
        let file = peer.file();
        let (mut found, report) = read(&file, persist::Unknown::Refuse).expect("sound");
        let stream = found.keys.remove(&(0, b"stream".to_vec())).expect("the stream");
        let value::ValueRef::Stream(stream) = stream.value.as_ref() else { panic!("{name}: no stream") };
        let pending: Vec<_> =
            stream.iter_groups().map(|(_, group)| group.pending_from(value::StreamId::MIN).count()).collect();
        assert_eq!((stream.len(), pending), (299, vec![5, 0]), "{name}");
        assert!(report.is_summed, "{name}");
        assert_eq!(found.functions.len(), 1, "{name}");
        expected.assert_same(&found, name);
        let bytes = std::fs::read(&file).expect("the file");
        let about = persist::describe(&bytes[..], 1).expect("sound");
        assert!(about.damage.is_none(), "{name}: {about}");
        assert_eq!(about.databases[&0].kinds["streams"].keys, 1, "{name}");
        assert_eq!(about.databases.len(), 2, "{name}");
    }
}

/// Writes contents as a file.
fn write(contents: &Contents, path: &Path, format: Format) {
    let mut file = SaveFile::create(Arc::new(RealDisk), path, format).expect("a folder");
    file.aux(b"redis-ver", b"7.0.0").expect("room");
    file.aux(b"evenkeel-lsn", b"12345").expect("room");
    for code in &contents.functions {
        file.function(code).expect("a version with functions");
    }
    for db in contents.databases() {
        let keys: Vec<_> =
            contents.keys.range((db.into(), Vec::new())..(u64::from(db) + 1, Vec::new())).collect();
        let expires = keys.iter().filter(|(_, owned)| owned.expire_ms.is_some()).count();
        file.database(db, keys.len() as u64, expires as u64).expect("room");
        for ((_, key), owned) in keys {
            let kept = Kept { expire_ms: owned.expire_ms, ..Kept::default() };
            file.key(key, &owned.value, kept).expect("room");
        }
    }
    file.finish().expect("room");
}

#[test]
fn real_servers_read_what_is_written() {
    let formats = |times: bool, name: &str| match (times, name.contains("valkey")) {
        (false, _) => [Format::new(Dialect::Redis, 10), None],
        (true, true) => [Format::new(Dialect::Redis, 11), Some(Format::VALKEY)],
        (true, false) => [Format::new(Dialect::Redis, 11), Some(Format::REDIS)],
    };
    for (name, has_field_times) in peer::SERVERS {
        let Some(mut source) = Peer::start(name, None) else { continue };
        fill(&mut source);
        for format in formats(*has_field_times, name).into_iter().flatten() {
            if format.has_field_times() {
                fill_field_times(&mut source);
            }
            source.run(&["SAVE"]);
            let (mut contents, _) = read(&source.file(), persist::Unknown::Refuse).expect("sound");
            let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i / 1000) as u8 ^ i as u8).collect();
            contents.put(5, b"large", Value::Str(value::Str::from_slice(&large)));
            contents.put(5, b"repeating", Value::Str(value::Str::from_slice(&b"0123456789".repeat(200_000))));
            let list = (0..30_000).map(|i| format!("element {i}").into_bytes());
            contents.put(5, b"many", Value::List(list.collect()));
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("dump.rdb");
            write(&contents, &path, format);
            peer::check(name, &path);
            let Some(mut peer) = Peer::start(name, Some(&path)) else { continue };
            peer.contents().assert_same(&contents, &format!("{name} {format}"));
            assert_eq!(peer.number(&[b"FCALL", b"f", b"0"]), 7, "{name} {format}");
            let (again, _) = read(&path, persist::Unknown::Refuse).expect("sound");
            assert_eq!(contents_of(&again), contents_of(&contents), "{name} {format}");
        }
    }
}
