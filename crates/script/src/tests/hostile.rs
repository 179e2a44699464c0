//! Hostile scripts: numbers at the edges of a C int through every function, changes to shared state, and
//! loops within one call.

use super::{Map, eval, once};
use crate::{Engine, Limits};

/// With a collection at every allocation, some tests run on a smaller scale (`make lua-sanitize`).
const COLLECTS: bool = cfg!(lua_collects);

/// Numbers that become ints, and some near a limit of the interpreter.
const EDGES: &str =
    "local edges = {-2147483648, -2147483647, -1, 0, 1, 2, 7999, 8000, 2147483646, 2147483647, 2147483648,
    4294967296, 1e15, -9223372036854775808, 9223372036854775808, 1e308, 0.5, 1/0, -1/0, 0/0} ";

/// Arguments before the numbers.
const BEFORE: [&str; 12] = [
    "",
    "{}",
    "{1, 2, 3, 4, 5}",
    "'abc'",
    "'z', ",
    "'%99.99d%-5.3f%5c%x%g%e%o%u%i', 1",
    "'i4', 'abcdefgh'",
    "'abc', 'b'",
    "function(...) return ... end",
    "coroutine.create(function(...) return ... end)",
    "'\\148\\1\\2\\3\\4'",
    "{1, 2, 3}, ''",
];

const FUNCTIONS: [&str; 2] = [
    "assert collectgarbage error gcinfo getmetatable ipairs load loadstring next pairs pcall rawequal rawget rawset select \
     setmetatable tonumber tostring type unpack xpcall",
    "string table math coroutine bit struct cmsgpack cjson redis os",
];

/// All functions, by the names that scripts use.
fn functions() -> Vec<String> {
    let mut names: Vec<String> = FUNCTIONS[0].split_whitespace().map(str::to_owned).collect();
    for library in FUNCTIONS[1].split_whitespace() {
        let listed = once(&format!(
            "local names = {{}} for name, f in pairs({library}) do if type(f) == 'function' then names[#names + 1] = name end end
             table.sort(names) return table.concat(names, ' ')"
        ));
        let listed = listed.split("\r\n").nth(1).expect("a bulk");
        names.extend(listed.split(' ').map(|name| format!("{library}.{name}")));
    }
    assert!(names.len() > 110, "{names:?}");
    names
}

/// The process survives, each call gives a result or an error, and the engine works as before.
#[test]
fn numbers_at_the_edges_give_a_result_or_an_error() {
    let mut engine = Engine::new(Limits { memory_bytes: 64 << 20, hook_every: 1000, ..Limits::default() });
    let mut ended = Vec::new();
    for function in functions() {
        for before in BEFORE {
            let comma = if before.is_empty() || before.ends_with(", ") { "" } else { "," };
            let step = if COLLECTS { 7 } else { 1 };
            // A few of all triples: their sums wrap.
            let script = format!(
                "{EDGES} local pcall, f = pcall, {function}
                 for i = 1, #edges, {step} do
                   local a = edges[i]
                   pcall(f, {before}{comma} a)
                   pcall(function() return select('#', f({before}{comma} a)) end)
                   for j = 1, #edges, {step} do
                     local b = edges[j]
                     pcall(f, {before}{comma} a, b)
                     pcall(f, {before}{comma} a, b, edges[(i * 7 + j * 3) % #edges + 1])
                   end
                 end
                 return 1"
            );
            let mut host = Map { patience: Some(3_000), ..Map::default() };
            let reply = eval(&mut engine, &mut host, &script, &[], &[]);
            match reply.as_str() {
                ":1\r\n" => {}
                "stopped: Killed" => ended.push(function.clone()),
                other => panic!("{function} {before}: {other}"),
            }
        }
        assert_eq!(eval(&mut engine, &mut Map::default(), "return ('x'):rep(3)", &[], &[]), "$3\r\nxxx\r\n");
    }
    // Moving two thousand million elements takes long.
    ended.dedup();
    assert!(ended.iter().all(|name| name == "table.insert"), "{ended:?}");
}

/// A table where a string belongs has a length too, and no bytes.
#[test]
fn values_of_every_type_in_every_place_give_a_result_or_an_error() {
    let mut engine = Engine::new(Limits { memory_bytes: 64 << 20, hook_every: 1000, ..Limits::default() });
    for function in functions().iter().filter(|name| !matches!(name.as_str(), "coroutine.yield" | "error")) {
        let step = if COLLECTS { 3 } else { 1 };
        let script = format!(
            "local pcall, f = pcall, {function}
             local c = coroutine.create(function() end)
             local all = {{false, 0.5, 'abc', {{1, 2, 3}}, {{x = 1}}, function() end, c, cjson.null}}
             for i = 1, #all do
               pcall(f, all[i])
               for j = 1, #all, {step} do
                 pcall(f, all[i], all[j])
                 pcall(f, nil, all[i], all[j])
                 for k = 1, #all, {step} do pcall(f, all[i], all[j], all[k]) end
               end
             end
             return 1"
        );
        let mut host = Map { patience: Some(3_000), ..Map::default() };
        let reply = eval(&mut engine, &mut host, &script, &[], &[]);
        assert!(matches!(reply.as_str(), ":1\r\n" | "stopped: Killed"), "{function}: {reply}");
    }
    assert_eq!(once("return redis.sha1hex({1, 2, 3})"), once("return redis.sha1hex('')"));
}

#[test]
fn spans_that_an_int_does_not_hold_are_refused() {
    for bounds in [
        "0, 2147483647",
        "-2147483648, 2147483647",
        "-2147483648, -1",
        "-2147483648, -2",
        "-1, 2147483646",
        "1, 2147483647",
        "-2147483647, 2147483647",
        "1, 8001",
        "0.9, 2147483647.5",
    ] {
        let reply = once(&format!("return select('#', unpack({{}}, {bounds}))"));
        assert!(reply.contains("too many results to unpack"), "{bounds}: {reply}");
        let caught = once(&format!("return pcall(unpack, {{}}, {bounds}) and 1 or 0"));
        assert_eq!(caught, ":0\r\n", "{bounds}");
    }
    for (bounds, count) in [
        ("2147483647, 2147483647", 1),
        ("-2147483648, -2147483648", 1),
        ("2147483646, 2147483647", 2),
        ("2147483647, 2147483646", 0),
        ("1, 7000", 7000),
        ("1, -1/0", 0),
        ("0/0, 0", 1),
        ("1, 1/0", 0),
        ("2147483647, -2147483648", 0),
    ] {
        let reply = once(&format!("return select('#', unpack({{}}, {bounds}))"));
        assert_eq!(reply, format!(":{count}\r\n"), "{bounds}");
    }
}

/// As C's `%x` and `%d` on x86, which scripts know from Redis.
#[test]
fn numbers_that_no_integer_holds_are_written_as_ever() {
    for (format, number, expected) in [
        ("%d", "1/0", "-9223372036854775808"),
        ("%d", "0/0", "-9223372036854775808"),
        ("%d", "-1.9", "-1"),
        ("%x", "-1", "ffffffffffffffff"),
        ("%x", "2^63", "8000000000000000"),
        ("%x", "2^64 - 2048", "fffffffffffff800"),
        ("%u", "2^53", "9007199254740992"),
        ("%x", "0/0", "8000000000000000"),
        ("%c", "65.9", "A"),
    ] {
        let reply = once(&format!("return string.format('{format}', {number})"));
        assert_eq!(reply, format!("${}\r\n{expected}\r\n", expected.len()), "{format} {number}");
    }
    for (call, expected) in [
        ("('ab'):rep(1/0)", ""),
        ("('ab'):rep(2^31)", ""),
        ("('ab'):rep(2^32 + 1)", "ab"),
        ("('abc'):sub(-2^63)", "abc"),
        ("('abc'):sub(2, 2^53)", "bc"),
        ("('abc'):byte(-2^31) or ''", ""),
        ("table.concat({'a', 'b'}, ',', 1, 0/0)", ""),
    ] {
        let reply = once(&format!("return {call}"));
        assert_eq!(reply, format!("${}\r\n{expected}\r\n", expected.len()), "{call}");
    }
}

/// State that scripts share: metatables of shared values, and the tables of the libraries.
#[test]
fn no_script_changes_what_others_share() {
    let values = [
        "''",
        "'a'",
        "1",
        "true",
        "nil",
        "pairs",
        "function() end",
        "coroutine.create(function() end)",
        "cjson.null",
    ];
    let tables = [
        "_G",
        "string",
        "table",
        "math",
        "coroutine",
        "bit",
        "struct",
        "cmsgpack",
        "cjson",
        "redis",
        "os",
        "server",
        "cjson.array_mt",
    ];
    let attacks = |value: &str| {
        [
            format!("setmetatable({value}, {{__index = function() return 666 end}})"),
            format!("rawset(getmetatable({value}), '__index', function() return 666 end)"),
            format!("getmetatable({value}).__index = function() return 666 end"),
            format!("getmetatable({value}).__index.upper = function() return 666 end"),
            format!("getmetatable({value}).__call = function() return 666 end"),
            format!("setmetatable(getmetatable({value}), {{__index = function() return 666 end}})"),
            format!("setmetatable(getmetatable({value}).__index, nil)"),
            format!("table.insert(getmetatable({value}), 666)"),
            format!("getmetatable({value}).__add = function() return 666 end"),
            format!("debug.setmetatable({value}, {{__index = function() return 666 end}})"),
            format!("for k in pairs(getmetatable({value})) do getmetatable({value})[k] = nil end"),
        ]
    };
    let writes = |table: &str| {
        [
            format!("{table}.upper = 666"),
            format!("{table}[1] = 666"),
            format!("rawset({table}, 'upper', 666)"),
            format!("table.insert({table}, 666)"),
            format!("table.remove({table})"),
            format!("table.sort({table})"),
            format!("setmetatable({table}, {{__index = function() return 666 end}})"),
            format!("for k in pairs({table}) do {table}[k] = 666 end"),
            format!("table.foreach({table}, function(k) {table}[k] = 666 end)"),
            format!("local t = next({table}) and {table} rawset(t, next(t), 666)"),
        ]
    };
    let checks = "local c = coroutine.create(function() end)
        local ok = {('a'):upper() == 'A', #redis.sha1hex('') == 40, string.upper('b') == 'B', table[1] == nil, string[1] == nil,
            not pcall(function() return (1).x end), not pcall(function() return (true).x end), not pcall(function() return (nil).x end),
            not pcall(function() return pairs.x end), not pcall(function() return c.x end), not pcall(function() return ('a')() end),
            not pcall(function() return 'a' + true end), not pcall(function() return cjson.null.x end), getmetatable(1) == nil,
            not pcall(function() return nosuchglobal end), cjson.encode(cjson.decode('[]')) == '{}', bit.band(3, 1) == 1,
            getmetatable(c) == nil, getmetatable(pairs) == nil, upper == nil or true, math.floor(1.5) == 1, ('x').upper == string.upper}
        local bad = '' for i = 1, 22 do if not ok[i] then bad = bad .. i .. ' ' end end return bad";
    let checks = checks.replace("upper == nil or true", "pcall(function() return upper end) == false");
    let names = [
        "debug", "io", "getfenv", "setfenv", "newproxy", "dofile", "loadfile", "require", "module", "package",
    ];
    for name in names {
        assert_eq!(once(&format!("return tostring(rawget(_G, '{name}'))")), "$3\r\nnil\r\n", "{name}");
    }
    let all: Vec<String> = values
        .iter()
        .chain(&tables)
        .flat_map(|value| attacks(value))
        .chain(tables.iter().flat_map(|table| writes(table)))
        .collect();
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    assert_eq!(eval(&mut engine, &mut host, &checks, &[], &[]), "$0\r\n\r\n");
    // A function of a library does the same in the state that all functions share.
    let library = format!(
        "#!lua name=l\nredis.register_function('attack', function(keys, args) local f = loadstring(args[1]) pcall(f) return 1 end)
         redis.register_function('check', function() {checks} end)"
    );
    let library = engine.load_library(library.as_bytes(), &mut host).expect("loads");
    let function = |name: &str| library.functions.iter().find(|f| f.name == name).expect("is there").callback;
    let (attack, check) = (function("attack"), function("check"));
    for text in all {
        eval(&mut engine, &mut host, &format!("pcall(function() {text} end) return 1"), &[], &[]);
        eval(&mut engine, &mut host, &text, &[], &[]);
        assert_eq!(eval(&mut engine, &mut host, &checks, &[], &[]), "$0\r\n\r\n", "{text}");
        let mut out = Vec::new();
        engine
            .call_function(attack, "attack", &[], &[text.as_bytes()], &mut host, &mut out, false)
            .expect("ends");
        out.clear();
        engine.call_function(check, "check", &[], &[], &mut host, &mut out, false).expect("ends");
        assert_eq!(String::from_utf8_lossy(&out), "$0\r\n\r\n", "{text}");
    }
}

/// Loops within one instruction ask the host and obey it.
#[test]
fn loops_within_one_call_can_be_ended() {
    let numbers = "local t = {} for i = 1, 200000 do t[i] = (i * 7919) % 200003 end ";
    for (before, work) in [
        (numbers, "table.sort(t)"),
        (numbers, "table.sort(t, rawequal)"),
        (numbers, "for i = 1, 20 do table.remove(t, 1) end"),
        (numbers, "for i = 1, 3 do table.foreachi(t, math.randomseed) end"),
        (numbers, "for i = 1, 3 do table.foreach(t, math.randomseed) end"),
        (numbers, "for i = 1, 10 do table.maxn(t) end"),
        (
            "local t = {} for i = 1, 200000 do t[i] = i end for i = 1, 200000 do t[i] = nil end ",
            "for i = 1, 100 do next(t) end",
        ),
        (
            "local t = {} for i = 1, 100000 do t['k' .. i] = i end for i = 1, 100000 do t['k' .. i] = nil end ",
            "for i = 1, 100 do next(t) end",
        ),
        ("local s = ('x'):rep(1000000)", "for i = 1, 5 do s:upper() end"),
        ("local s = ('x'):rep(1000000)", "for i = 1, 5 do s:reverse() end"),
    ] {
        let run = |script: &str, patience| {
            let mut host = Map { patience, ..Map::default() };
            let reply = eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[]);
            (reply, host.asked)
        };
        let (reply, without) = run(&format!("{before} return 1"), None);
        assert_eq!(reply, ":1\r\n", "{before}");
        let script = format!("{before} pcall(function() {work} end) return 1");
        let (reply, with) = run(&script, None);
        assert_eq!(reply, ":1\r\n", "{work}");
        assert!(with >= without + 20, "{work}: {without} and {with}");
        assert_eq!(run(&script, Some(without + 10)), ("stopped: Killed".into(), without + 11), "{work}");
    }
}

/// Keys that share one hash: each look-up is long, and counts so.
#[test]
fn long_chains_of_keys_count() {
    // The hash of a number is the sum of its halves. In these keys one half grows as the other shrinks.
    let keys = "local k, bytes = {}, string.char
        for i = 1, 3000 do
          local low, high = i, 0x40000000 - i
          local function word(n) return bytes(n % 256, math.floor(n / 256) % 256, math.floor(n / 65536) % 256, math.floor(n / 16777216)) end
          k[i] = struct.unpack('<d', word(low) .. word(high))
        end
        local t = {} ";
    let asked = |work: &str| {
        let mut host = Map::default();
        let script = format!("{keys} {work} return 1");
        assert_eq!(eval(&mut Engine::new(Limits::default()), &mut host, &script, &[], &[]), ":1\r\n");
        host.asked
    };
    let (none, few, many) =
        (asked(""), asked("for i = 1, 3000 do t[i] = i end"), asked("for i = 1, 3000 do t[k[i]] = i end"));
    assert!(few < none + 10, "{none} {few}");
    // 3,000 keys, 1,500 comparisons each on average.
    assert!(many > none + 500, "{none} {many}");
}

/// A table with every power of two as a key appears longer than it can be.
#[test]
fn the_length_of_a_table_with_all_powers_of_two_is_found_soon() {
    let script =
        "local t = {} for i = 1, 70000 do t[i] = i end for i = 0, 30 do t[2 ^ i] = 1 end t[2147483645] = 1
        local n = 0 for i = 1, 1000 do n = #t end return t[n] ~= nil and t[n + 1] == nil";
    assert_eq!(once(script), ":1\r\n");
    assert_eq!(once("local t = {} for i = 0, 30 do t[2 ^ i] = 1 end return #t"), ":4\r\n");
}
