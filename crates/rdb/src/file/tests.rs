use super::*;
use crate::{Form, Item, Writer, put_len, put_string};

/// A part, owned, as text.
fn said(part: &Part<'_>) -> String {
    match part {
        Part::Entry(head) => {
            let (key, object) = (head.key.escape_ascii(), head.object.len());
            format!("{key} of {} in {}: {object} bytes, {:?}", head.kind_name(), head.db, head.expire_ms)
        }
        Part::Aux { name, value } => format!("aux {} {}", name.escape_ascii(), value.escape_ascii()),
        Part::Function(code) => format!("function {}", code.escape_ascii()),
        part => format!("{part:?}"),
    }
}

type Parts = (Vec<String>, Option<Damage<std::convert::Infallible>>);

fn parts(file: &[u8]) -> Parts {
    let mut parts = Vec::new();
    let mut reader = match FileReader::new(Summed::new(file), true) {
        Ok(reader) => reader,
        Err(damage) => return (parts, Some(damage)),
    };
    loop {
        match reader.next_part() {
            Ok(Part::End { sum }) => {
                let sum = sum.map(|sum| sum == reader.input().sum());
                parts.push(format!("end {sum:?}"));
                return (parts, None);
            }
            Ok(part) => parts.push(said(&part)),
            Err(damage) => return (parts, Some(damage)),
        }
    }
}

fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    put_end(&mut file);
    let sum = crate::crc64(0, &file);
    file.extend_from_slice(&sum.to_le_bytes());
    file
}

fn string(out: &mut Vec<u8>, key: &[u8], text: &[u8]) {
    let mut writer = Writer::begin(out, Form::String, Some(key));
    writer.item(out, Item::Bytes(text));
}

/// A file with one of each part.
fn sample() -> Vec<u8> {
    let mut file = Vec::new();
    put_header(&mut file, Format::REDIS);
    put_aux(&mut file, b"redis-ver", b"7.4.0");
    put_aux(&mut file, b"redis-bits", b"64");
    put_function(&mut file, b"#!lua name=l\n");
    put_select(&mut file, 0);
    put_resize(&mut file, 2, 1);
    string(&mut file, b"a", b"text");
    put_expiry(&mut file, 1_900_000_000_000);
    put_freq(&mut file, 7);
    string(&mut file, b"b", b"12");
    put_select(&mut file, 700);
    put_idle(&mut file, 100);
    string(&mut file, &[b'k'; 300], &[b'v'; 200_000]);
    sealed(file)
}

#[test]
fn what_is_written_is_read() {
    let (parts, damage) = parts(&sample());
    assert_eq!(damage, None);
    let long = "k".repeat(300);
    let expected = [
        "aux redis-ver 7.4.0".to_owned(),
        "aux redis-bits 64".to_owned(),
        "function #!lua name=l\\n".to_owned(),
        "Select(0)".to_owned(),
        "Resize { keys: 2, expires: 1 }".to_owned(),
        "a of strings in 0: 6 bytes, None".to_owned(),
        "b of strings in 0: 3 bytes, Some(1900000000000)".to_owned(),
        "Select(700)".to_owned(),
        format!("{long} of strings in 700: 200006 bytes, None"),
        "end Some(true)".to_owned(),
    ];
    assert_eq!(parts, expected);
}

#[test]
fn entries_say_where_they_are_and_what_precedes_them() {
    let file = sample();
    let mut reader = FileReader::new(&file[..], false).expect("a header");
    let mut entries = Vec::new();
    let mut before = HEADER_LEN as u64;
    loop {
        match reader.next_part().expect("sound") {
            Part::Entry(head) => {
                assert_eq!(head.from, before);
                assert!(head.object.is_empty());
                entries.push((head.freq, head.idle_s, head.from, head.to));
            }
            Part::End { .. } => break,
            _ => {}
        }
        before = reader.offset();
    }
    assert_eq!(
        entries.iter().map(|entry| (entry.0, entry.1)).collect::<Vec<_>>(),
        [(None, None), (Some(7), None), (None, Some(100))]
    );
    assert_eq!(reader.offset(), file.len() as u64);
    assert!(matches!(reader.next_part(), Ok(Part::End { .. })));
}

#[test]
fn headers_of_known_versions_are_read() {
    let read = |magic: &[u8]| FileReader::new(magic, false).map(|reader| reader.format());
    for version in 1..=12 {
        let format = Format::new(Dialect::Redis, version).expect("known");
        let mut header = Vec::new();
        put_header(&mut header, format);
        assert_eq!(header, format!("REDIS{version:04}").into_bytes());
        assert_eq!(read(&header), Ok(format));
    }
    assert_eq!(read(b"VALKEY080"), Ok(Format::VALKEY));
    for (magic, said) in [
        (&b"REDIS0014"[..], "Redis version 14 of the format is not supported (1 to 13 are)"),
        (b"REDIS0000", "Redis version 0 of the format is not supported (1 to 13 are)"),
        (b"VALKEY081", "Valkey version 81 of the format is not supported (80 is)"),
        (b"REDIS00x1", "this is no RDB file"),
        (b"REDIS001", "this is no RDB file"),
        (b"", "this is no RDB file"),
        (b"*3\r\n$3\r\nSET", "this is no RDB file"),
    ] {
        let damage = read(magic).expect_err("not known");
        assert_eq!(damage.to_string(), format!("file offset 0: {said}"));
    }
}

/// The newest version that is read. It is not written.
const NEWEST: Format = Format { dialect: Dialect::Redis, version: VERSION_METADATA };

#[test]
fn metadata_is_passed_over_and_counted() {
    let mut file = Vec::new();
    put_header(&mut file, NEWEST);
    assert_eq!(file, b"REDIS0013");
    put_expiry(&mut file, 1_900_000_000_000);
    put_freq(&mut file, 7);
    file.extend(b"\xf3\x02\x01\x02\x03\x04\x02\x05\x05\x02hi\0\x05\x06\x07\x08\0");
    file.push(0);
    put_string(&mut file, b"told");
    put_string(&mut file, b"v");
    for producers in [&b"\x01\x01p\x01\x01i\x01\x01"[..], b"\0"] {
        file.push(26);
        put_string(&mut file, b"stream");
        file.extend(b"\0\0\0\0\0\0\0\0\0\0\x40\x64\x40\x64");
        file.extend([producers, b"\x01\0"].concat());
    }
    let file = sealed(file);
    let mut reader = FileReader::new(&file[..], true).expect("a header");
    match reader.next_part() {
        Ok(Part::Entry(head)) => {
            assert_eq!((head.key, head.object), (&b"told"[..], &b"\0\x01v"[..]));
            assert_eq!((head.expire_ms, head.freq), (Some(1_900_000_000_000), Some(7)));
        }
        other => panic!("{other:?}"),
    }
    for _ in 0..2 {
        assert!(matches!(reader.next_part(), Ok(Part::Entry(_))));
    }
    assert!(matches!(reader.next_part(), Ok(Part::End { sum: Some(_) })));
    assert_eq!(reader.left_out(), LeftOut { keys_with_metadata: 1 });
    // Version 12 has no metadata.
    let mut reader = FileReader::new(&b"REDIS0012\xf3\0"[..], true).expect("a header");
    assert_eq!(reader.next_part().expect_err("unknown").what, Problem::Opcode(0xf3));
}

#[test]
fn the_lowest_version_carries_what_is_there() {
    let lowest = |dialect, functions, times| Format::lowest(dialect, functions, times).to_string();
    assert_eq!(lowest(Dialect::Valkey, false, false), "redis version 9");
    assert_eq!(lowest(Dialect::Redis, true, false), "redis version 10");
    assert_eq!(lowest(Dialect::Redis, false, true), "redis version 12");
    assert_eq!(lowest(Dialect::Valkey, true, true), "valkey version 80");
}

/// A file with one object, whose type is the first byte.
fn with_object(format: Format, object: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    put_header(&mut file, format);
    file.push(object[0]);
    put_string(&mut file, b"key");
    file.extend_from_slice(&object[1..]);
    sealed(file)
}

#[test]
fn objects_of_real_servers_are_passed_over() {
    let hex = |text: &str| -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits");
        (0..text.len()).step_by(2).map(digits).collect()
    };
    let mut kinds = std::collections::BTreeSet::new();
    let lines = include_str!("../../tests/data/payloads.txt").lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let payload = hex(line.split(' ').nth(1).expect("a payload"));
        let (body, version) = crate::open(&payload).expect("sound");
        let dialect = if version >= VERSION_VALKEY_9 { Dialect::Valkey } else { Dialect::Redis };
        let format = match (dialect, version) {
            (Dialect::Valkey, _) => Format::VALKEY,
            (_, VERSION_METADATA) => NEWEST,
            _ => Format::REDIS,
        };
        let file = with_object(format, body);
        let mut reader = FileReader::new(&file[..], true).expect("a header");
        match reader.next_part() {
            Ok(Part::Entry(head)) => {
                assert!(head.object == body, "{line}");
            }
            other => panic!("{line}: {other:?}"),
        }
        assert!(matches!(reader.next_part(), Ok(Part::End { .. })), "{line}");
        kinds.insert(body[0]);
    }
    let all = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24, 25, 26];
    assert_eq!(kinds.into_iter().collect::<Vec<u8>>(), all);
}

#[test]
fn values_of_modules_and_what_they_write_beside_are_passed_over() {
    let mut object = vec![types_module()];
    put_len(&mut object, u64::MAX);
    for (code, len) in [(1, 0), (2, 0), (3, 4), (4, 8)] {
        put_len(&mut object, code);
        if len == 0 {
            put_len(&mut object, 1 << 40);
        }
        object.extend(std::iter::repeat_n(7, len));
    }
    put_len(&mut object, 5);
    put_string(&mut object, b"text");
    put_len(&mut object, 0);
    let (read, damage) = parts(&with_object(Format::REDIS, &object));
    assert_eq!(damage, None);
    assert_eq!(read[0], format!("key of values of modules in 0: {} bytes, None", object.len()));

    let mut file = Vec::new();
    put_header(&mut file, Format::REDIS);
    file.push(MODULE_AUX);
    file.extend_from_slice(&object[1..]);
    file.push(SLOT_INFO);
    [3, 2, 1].into_iter().for_each(|n| put_len(&mut file, n));
    let (read, damage) = parts(&sealed(file));
    assert_eq!(damage, None);
    assert_eq!(read[0], "ModuleAux { name: [95, 95, 95, 95, 95, 95, 95, 95, 95], version: 1023 }");
    assert_eq!(read[1], "SlotInfo { slot: 3, keys: 2, expires: 1 }");
}

fn types_module() -> u8 {
    crate::types::MODULE_2
}

#[test]
fn what_cannot_be_read_is_named_with_its_place() {
    let after_select = |bytes: &[u8]| {
        let mut file = Vec::new();
        put_header(&mut file, Format::REDIS);
        put_select(&mut file, 3);
        file.extend_from_slice(bytes);
        parts(&sealed(file)).1.expect("damage").to_string()
    };
    assert_eq!(after_select(&[243]), "file offset 11, database 3: unknown opcode or type 243");
    assert_eq!(after_select(&[8]), "file offset 11, database 3: unknown opcode or type 8");
    assert_eq!(
        after_select(&[246]),
        "file offset 11, database 3: libraries of functions from release candidates of Redis 7.0 are not supported"
    );
    assert_eq!(after_select(b"\x01\x01k\xff"), "file offset 15, key \"k\", database 3: an impossible length");
    assert_eq!(
        after_select(b"\x06\x01k"),
        "file offset 11, key \"k\", database 3: values of modules from release \
        candidates of Redis 4.0 are not supported"
    );
    // The end of the file comes before that of the string.
    let long = after_select(b"\x00\x02k\n\x81\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_eq!(long, "file offset 33, key \"k\\n\", database 3: the file ends too soon");
    let packed = after_select(b"\xfa\xc3\x02\x05\x00a\x01v");
    assert_eq!(packed, "file offset 17, database 3: a compressed string does not unpack");
}

#[test]
fn a_damaged_entry_says_where_it_begins() {
    let mut file = Vec::new();
    put_header(&mut file, Format::REDIS);
    put_expiry(&mut file, 5);
    file.extend_from_slice(b"\x00\x01k\x05v");
    let damage = parts(&file).1.expect("it ends too soon");
    assert_eq!((damage.from, damage.offset), (HEADER_LEN as u64, file.len() as u64));
}

#[test]
fn every_beginning_of_a_file_is_an_error() {
    let file = {
        let mut small = Vec::new();
        put_header(&mut small, Format::REDIS);
        put_aux(&mut small, b"name", &[b'v'; 100]);
        put_function(&mut small, b"code");
        put_select(&mut small, 1);
        put_expiry(&mut small, 5);
        string(&mut small, b"k", b"v");
        sealed(small)
    };
    for len in 0..file.len() {
        let (_, damage) = parts(&file[..len]);
        let damage = damage.unwrap_or_else(|| panic!("{len} bytes are taken for all"));
        assert!(damage.offset <= len as u64);
        assert!(matches!(damage.what, Problem::Truncated | Problem::NoFile), "{len}: {damage}");
    }
}

#[test]
fn changed_bytes_are_read_or_refused() {
    let mut file = Vec::new();
    put_header(&mut file, Format::REDIS);
    put_aux(&mut file, b"redis-ver", b"7.4.0");
    put_select(&mut file, 1);
    put_expiry(&mut file, 5);
    string(&mut file, b"key", b"value");
    let hash: crate::HashPayload = [("f", "v"), ("g", "w")].into_iter().collect();
    let body = hash.into_body(Dialect::Redis).expect("not empty").0;
    file.push(body[0]);
    put_string(&mut file, b"hash");
    file.extend_from_slice(&body[1..]);
    let file = sealed(file);
    let whole = parts(&file).0;
    for at in 0..file.len() {
        for byte in 0..=255 {
            let mut changed = file.clone();
            if changed[at] == byte {
                continue;
            }
            changed[at] = byte;
            let (read, damage) = parts(&changed);
            // The sum tells, unless the end with it was changed or the file has none.
            if damage.is_none() && read.last().map(String::as_str) == Some("end Some(true)") {
                panic!("byte {at} as {byte} was not noticed: {read:?} {whole:?}");
            }
        }
    }
}

#[test]
fn old_files_have_no_sum() {
    let mut file = b"REDIS0003".to_vec();
    file.extend_from_slice(b"\xfd\x10\x00\x00\x00\x00\x01k\x01v\xff");
    let (read, damage) = parts(&file);
    assert_eq!(damage, None);
    assert_eq!(read, ["k of strings in 0: 3 bytes, Some(16000)", "end None"]);
}

#[test]
fn times_before_1970_have_passed_and_minus_one_is_none() {
    for (written, read) in [(-1_i64, "None"), (-2, "Some(0)"), (i64::MIN, "Some(0)"), (5, "Some(5)")] {
        let mut file = Vec::new();
        put_header(&mut file, Format::REDIS);
        put_expiry(&mut file, written as u64);
        string(&mut file, b"k", b"v");
        assert_eq!(parts(&sealed(file)).0[0], format!("k of strings in 0: 3 bytes, {read}"));
    }
}
