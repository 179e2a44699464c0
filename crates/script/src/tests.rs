//! Scripts against a small map of strings in place of a server.

mod bounds;

use std::collections::BTreeMap;

use crate::{Engine, Host, Limits, Stop};

mod compiler;
mod hostile;

/// A host with GET, SET, DEL, ECHO and a few commands with odd replies.
#[derive(Default)]
pub(crate) struct Map {
    pub(crate) strings: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) logged: Vec<(i32, Vec<u8>)>,
    /// Interrupts allowed before the stop.
    pub(crate) patience: Option<u32>,
    /// How often the host was asked.
    pub(crate) asked: u32,
    pub(crate) calls: u64,
}

impl Host for Map {
    fn call(&mut self, args: &[&[u8]], resp3: bool, out: &mut Vec<u8>) {
        self.calls += 1;
        let bulk = |value: Option<&[u8]>, out: &mut Vec<u8>| match value {
            Some(v) => {
                out.extend_from_slice(format!("${}\r\n", v.len()).as_bytes());
                out.extend_from_slice(v);
                out.extend_from_slice(b"\r\n");
            }
            None if resp3 => out.extend_from_slice(b"_\r\n"),
            None => out.extend_from_slice(b"$-1\r\n"),
        };
        match (args[0].to_ascii_lowercase().as_slice(), &args[1..]) {
            (b"get", [key]) => bulk(self.strings.get(*key).map(Vec::as_slice), out),
            (b"set", [key, value]) => {
                self.strings.insert(key.to_vec(), value.to_vec());
                out.extend_from_slice(b"+OK\r\n");
            }
            (b"del", [key]) => {
                let n = u8::from(self.strings.remove(*key).is_some());
                out.extend_from_slice(format!(":{n}\r\n").as_bytes());
            }
            (b"echo", [text]) => bulk(Some(text), out),
            (b"raw", [reply]) => out.extend_from_slice(reply),
            (b"panic", _) => panic!("a handler's mistake"),
            _ => out.extend_from_slice(b"-ERR Unknown Redis command called from script\r\n"),
        }
    }

    fn log(&mut self, level: i32, message: &[u8]) {
        self.logged.push((level, message.to_vec()));
    }

    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, String> {
        match args[0] {
            b"get" | b"set" => Ok(true),
            b"flushall" => Ok(false),
            _ => Err("no such command".into()),
        }
    }

    fn interrupt(&mut self) -> Option<Stop> {
        self.asked += 1;
        match &mut self.patience {
            None => None,
            Some(0) => Some(Stop::Killed),
            Some(left) => {
                *left -= 1;
                None
            }
        }
    }
}

pub(crate) fn eval(
    engine: &mut Engine,
    host: &mut Map,
    script: &str,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> String {
    let mut out = Vec::new();
    match engine.load(script.as_bytes()) {
        Ok(sha) => match engine.run(&sha, keys, args, host, &mut out, false) {
            Ok(()) => String::from_utf8_lossy(&out).into_owned(),
            Err(stop) => format!("stopped: {stop:?}"),
        },
        Err(text) => format!("-{text}\r\n"),
    }
}

pub(crate) fn once(script: &str) -> String {
    eval(&mut Engine::new(Limits::default()), &mut Map::default(), script, &[], &[])
}

#[test]
fn a_script_computes_and_returns() {
    assert_eq!(once("return 1 + 1"), ":2\r\n");
    assert_eq!(once("return 'a'"), "$1\r\na\r\n");
    assert_eq!(
        once("return {1, 'b', {true, false}, 3.99, nil, 5}"),
        "*4\r\n:1\r\n$1\r\nb\r\n*2\r\n:1\r\n$-1\r\n:3\r\n"
    );
}

/// An instruction that copies, hashes, compares or reads 200 KB counts as thousands: the host is asked each
/// time.
#[test]
fn work_on_much_is_asked_about_each_time() {
    let before = "local a = string.rep('x', 200000) .. 'a' local b = string.rep('x', 200000) .. 'b'
        local z = string.rep('\\0', 200000) local zz = z .. 'b' z = z .. 'a'
        local t = {} for i = 1, 7000 do t[i] = i end local h = {} for i = 1, 2000 do h['k' .. i] = i end
        for i = 1, 100 do ";
    for work in [
        "local x = a < b",
        "local x = z <= zz",
        "local x = a .. i",
        "local x = a:sub(-100000)",
        "local x = a:upper()",
        "local x = a:reverse()",
        "local x = ('yz'):rep(100000 + i)",
        "local x = a:find('b', 1, true)",
        "local x = a:find('xb$')",
        "local x = {a:byte(1, 7000)}",
        "local x = select('#', unpack(t))",
        "local x = redis.sha1hex(a)",
        "local x = string.format('%s' .. i, a)",
        "local x = table.concat({a, i})",
        "local x = table.maxn(h)",
        "local x = loadstring('return \"' .. a .. i .. '\"')",
        "local x = pcall(error, a .. i)",
        "local x = struct.pack('s', a)",
        "local x = cjson.encode(a)",
        "local x = cmsgpack.pack(a)",
        "redis.call('ECHO', a)",
        "redis.log(redis.LOG_WARNING, a)",
        "local x = redis.status_reply(a)",
        "local x = redis.error_reply(a)",
        "h['k' .. i] = nil h['m' .. i] = i",
        "table.remove(t, 1) table.insert(t, 1, i)",
    ] {
        let asked = |script: &str| {
            let mut host = Map::default();
            let reply = eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[]);
            assert_eq!(reply, ":1\r\n", "{script}");
            host.asked
        };
        let more = asked(&format!("{before}{work} end return 1")) - asked(&format!("{before}end return 1"));
        // At least every fourth time. A table that is full is rebuilt once.
        assert!(more >= if work.starts_with("h[") { 1 } else { 25 }, "{work}: {more}");
    }
}

#[test]
fn strings_are_ordered_byte_by_byte() {
    let texts: [&[u8]; 9] = [b"", b"\0", b"\0\0", b"\0a", b"a", b"a\0", b"a\0b", b"a\xffb", b"b"];
    let long = |text: &[u8]| [&vec![b'a'; 1000], text].concat();
    let texts: Vec<Vec<u8>> =
        texts.iter().map(|text| text.to_vec()).chain(texts.iter().map(|t| long(t))).collect();
    let mut engine = Engine::new(Limits::default());
    for a in &texts {
        for b in &texts {
            let script = "local function n(x) return x and 1 or 0 end local a, b = ARGV[1], ARGV[2]
                return n(a < b) * 8 + n(a <= b) * 4 + n(a > b) * 2 + n(a >= b)";
            let expected =
                [a < b, a <= b, a > b, a >= b].iter().fold(0, |bits, bit| bits * 2 + i32::from(*bit));
            let reply = eval(&mut engine, &mut Map::default(), script, &[], &[a, b]);
            assert_eq!(reply, format!(":{expected}\r\n"), "{a:?} {b:?}");
        }
    }
}

/// A sort that compares for long between two instructions can be ended there.
#[test]
fn a_sort_of_long_strings_can_be_ended() {
    let script = "local t = {} for i = 1, 60 do t[i] = string.rep('x', 20000) .. i end redis.call('SET', 'a', 'b') table.sort(t) return 1";
    let asked = |script: &str| {
        let mut host = Map::default();
        assert_eq!(eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[]), ":1\r\n");
        host.asked
    };
    let (all, unsorted) = (asked(script), asked(&script.replace("table.sort(t)", "")));
    assert!(all >= unsorted + 10, "{all} {unsorted}");
    let mut host = Map { patience: Some(unsorted + 5), ..Map::default() };
    let ended = eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[]);
    assert_eq!((ended.as_str(), host.asked), ("stopped: Killed", unsorted + 6));
}

#[test]
fn numbers_are_written_as_printf_writes_them() {
    let script = "local function same(n)
            if tostring(n) ~= string.format('%.14g', n) then error(string.format('%.17g', n) .. ' is ' .. n) end
            if n ~= n or n == 1 / 0 or n == -1 / 0 then return end
            if cjson.encode(n) ~= tostring(n) then error(cjson.encode(n) .. ' is ' .. n) end
            for _, precision in ipairs({1, 5, 9, 13}) do
                cjson.encode_number_precision(precision)
                local expected = string.format('%.' .. precision .. 'g', n)
                if cjson.encode(n) ~= expected then error(cjson.encode(n) .. ' is ' .. expected) end
            end
            cjson.encode_number_precision(14)
        end
        for e = -20, 20 do
            for d = -3, 3 do
                for _, n in ipairs({10 ^ e + d, 10 ^ e * d, 2 ^ (3 * e) + d, d / 3 * 10 ^ e, -(10 ^ e) - d / 2}) do same(n) end
            end
        end
        for i = -2000, 2000 do same(i) same(i * 1234567.0) same(i / 8) end
        for _, n in ipairs({-0.0, 0 / 0, 1 / 0, -1 / 0, 99999999999999, 99999999999999.5, 1e14 - 1, -1e14 + 1}) do same(n) end
        return {tostring(99999999999999), tostring(100000000000000), tostring(-0.0)}";
    assert_eq!(once(script), "*3\r\n$14\r\n99999999999999\r\n$5\r\n1e+14\r\n$2\r\n-0\r\n");
}

/// Whole numbers that are read directly, against those that C reads: the script adds where it could have
/// read.
#[test]
fn texts_are_read_as_the_numbers_they_are() {
    let script = "local n = 0
        for _, sign in ipairs({'', '-'}) do
            local text, value = '', 0
            for i = 1, 15 do
                local digit = (i * 7 + 3) % 10
                text, value = text .. digit, value * 10 + digit
                local signed = sign == '-' and -value or value
                for _, written in ipairs({text, '000' .. text, ' ' .. text, text .. ' ', text .. '.', text .. 'e0'}) do
                    local space, rest = written:match('^(%s*)(.*)$')
                    if tonumber(space .. sign .. rest) ~= signed then error(sign .. written) end
                    n = n + 1
                end
            end
        end
        for _, no in ipairs({'', '-', '--1', '1-', '12a', '1 2', '+', '- 1'}) do
            if tonumber(no) then error(no) end
        end
        return {n, 1 / tonumber('-0') == -1 / 0, tonumber('9007199254740993') == 9007199254740992, tonumber('0x10'), tonumber('1e3')}";
    assert_eq!(once(script), "*5\r\n:180\r\n:1\r\n:1\r\n:16\r\n:1000\r\n");
}

/// A reply with more strings than are made at a time, of all lengths, some twice, with other values between.
#[test]
fn strings_of_long_replies_are_each_what_was_sent() {
    let text = |i: usize| "x".repeat(i * i % 6007) + &(i % 500).to_string();
    let mut reply = String::from("*1500\r\n");
    for i in 0..1500 {
        let text = text(i);
        reply += &match i % 41 {
            17 => format!(":{i}\r\n"),
            20 => format!(":-{i}\r\n"),
            21..25 => format!(":{}\r\n", (i as u64).pow(4)),
            18 => "$-1\r\n".to_owned(),
            19 => format!("*2\r\n$3\r\nabc\r\n${}\r\n{text}\r\n", text.len()),
            _ => format!("${}\r\n{text}\r\n", text.len()),
        };
    }
    let script = "collectgarbage('setpause', 100) local r = redis.call('raw', ARGV[1]) return r";
    let mut engine = Engine::new(Limits::default());
    for _ in 0..3 {
        assert_eq!(eval(&mut engine, &mut Map::default(), script, &[], &[reply.as_bytes()]), reply);
    }
    let cut = &reply[..reply.len() - 5];
    assert!(eval(&mut engine, &mut Map::default(), script, &[], &[cut.as_bytes()]).contains("malformed"));
}

#[test]
fn keys_and_arguments_arrive_and_commands_run() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    let script = "redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])";
    assert_eq!(eval(&mut engine, &mut host, script, &[b"k"], &[b"v"]), "$1\r\nv\r\n");
    assert_eq!(eval(&mut engine, &mut host, script, &[b"k"], &[b"w"]), "$1\r\nw\r\n");
    assert_eq!(host.calls, 4);
}

#[test]
fn nothing_a_script_catches_keeps_it_alive() {
    let loops = [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() while true do pcall(f) end end f()",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do coroutine.wrap(function() while true do end end)() end",
        "while true do local c = coroutine.create(function() while true do end end) coroutine.resume(c) end",
        "local function g() while true do local c = coroutine.create(g) coroutine.resume(c) end end g()",
        "while true do pcall(coroutine.wrap(function() pcall(function() while true do end end) end)) end",
        "load(function() return 5 end)",
        "while true do load(function() while true do end end) end",
        "while true do pcall(string.gsub, ('x'):rep(100), 'x', function() while true do end end) end",
        "while true do pcall(table.sort, {3,1,2}, function() while true do end end) end",
        "local t = setmetatable({}, {__index = function() while true do end end}) while true do pcall(function() return t.x end) end",
        "while true do redis.pcall('get', 'x') end",
        "while true do pcall(redis.call, 'nosuch') end",
        "local t = {} for i = 1, 1e6 do t[i] = i end return cjson.encode(t)",
        "local t = {} for i = 1, 1e6 do t[i] = i end return t",
        "return ('a'):rep(5000):find('.-.-.-.-.-.-b')",
        "return ('a'):rep(5000):match('(.-)(.-)(.-)(.-)b')",
        "for w in ('a'):rep(5000):gmatch('.-.-.-.-.-b') do end",
        "return ('a'):rep(5000):gsub('.-.-.-.-.-b', 'x')",
        "return ('a'):rep(5000):gsub('.', function() while true do end end)",
        "return ('('):rep(200000):gsub('%b()', 'x')",
    ];
    let mut engine = Engine::new(Limits { hook_every: 1000, ..Limits::default() });
    for script in loops {
        let mut host = Map { patience: Some(50), ..Map::default() };
        assert_eq!(eval(&mut engine, &mut host, script, &[], &[]), "stopped: Killed", "{script}");
        // The engine works as before.
        let mut host = Map::default();
        assert_eq!(
            eval(&mut engine, &mut host, "return {#KEYS, cjson.encode({1})}", &[], &[]),
            "*2\r\n:0\r\n$3\r\n[1]\r\n"
        );
    }
}

#[test]
fn a_stop_leaves_no_reply_and_runs_no_further_command() {
    let mut engine = Engine::new(Limits { hook_every: 100, ..Limits::default() });
    let mut host = Map { patience: Some(5), ..Map::default() };
    let script = "for i = 1, 1e9 do local x = i end redis.call('set', 'a', 'b')";
    assert_eq!(eval(&mut engine, &mut host, script, &[], &[]), "stopped: Killed");
    assert_eq!(host.calls, 0);
}

#[test]
fn large_work_is_announced_before_it_is_done() {
    for script in [
        "local s = 'x' while true do s = s .. s end",
        "return ('x'):rep(2^20)",
        "local t = {} for i = 1, 2^15 do t[i] = i end table.sort(t)",
        "return table.concat({('x'):rep(2^17), ('y'):rep(2^17)}, '', 1, 2) .. ('z'):rep(2^17)",
    ] {
        let mut engine = Engine::new(Limits { hook_every: 1 << 30, ..Limits::default() });
        let mut host = Map { patience: Some(0), ..Map::default() };
        assert_eq!(eval(&mut engine, &mut host, script, &[], &[]), "stopped: Killed", "{script}");
    }
}

#[test]
fn a_panic_of_the_host_reaches_its_caller_and_spares_the_engine() {
    let mut engine = Engine::new(Limits::default());
    let script = "pcall(redis.call, 'panic') while true do end";
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eval(&mut engine, &mut Map::default(), script, &[], &[])
    }));
    assert!(panicked.is_err());
    assert_eq!(eval(&mut engine, &mut Map::default(), "return 5", &[], &[]), ":5\r\n");
}

#[test]
fn memory_is_limited_and_given_back() {
    let mut engine = Engine::new(Limits { memory_bytes: 8 << 20, ..Limits::default() });
    let mut host = Map::default();
    for script in [
        "local t = {} for i = 1, 1e9 do t[i] = {} end",
        "local s = 'x' while true do s = s .. s end",
        "return ('x'):rep(100 * 1024 * 1024)",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end",
        "local t = {} while true do t[#t + 1] = redis.call('echo', ('y'):rep(1e6) .. #t) end",
        "return cjson.decode('[' .. ('[],'):rep(1e6) .. '1]')",
    ] {
        let reply = eval(&mut engine, &mut host, script, &[], &[]);
        assert!(reply.contains("not enough memory"), "{script}: {}", &reply[..reply.len().min(200)]);
        assert_eq!(eval(&mut engine, &mut host, "return 5", &[], &[]), ":5\r\n");
        assert!(engine.memory_used() < 8 << 20, "{script}: {}", engine.memory_used());
    }
}

#[test]
fn long_strings_are_refused_before_they_are_made() {
    let too_large = once("return ('x'):rep(600 * 1024 * 1024)");
    assert!(too_large.contains("resulting string too large"), "{too_large}");
    let doubled = once("local s = ('x'):rep(2^28) while true do s = s .. s end");
    assert!(doubled.contains("not enough memory"), "{doubled}");
}

#[test]
fn one_run_leaves_nothing_for_the_next() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    for (first, second, expected) in [
        (
            "KEYS.x = 1 ARGV[9] = 2",
            "return {tostring(KEYS.x), tostring(ARGV[9])}",
            "*2\r\n$3\r\nnil\r\n$3\r\nnil\r\n",
        ),
        ("redis.setresp(3)", "return {double=2}", "$1\r\n2\r\n"),
        ("cjson.encode_max_depth(1)", "return cjson.encode({{}})", "$4\r\n[{}]\r\n"),
        ("collectgarbage('stop')", "return collectgarbage('count') > 0", ":1\r\n"),
        ("pcall(rawset, _G, 'x', 1) pcall(rawset, string, 'x', 1)", "return type(string.x)", "$3\r\nnil\r\n"),
        (
            "pcall(function() for k in pairs(redis) do redis[k] = nil end end)",
            "return type(redis.call)",
            "$8\r\nfunction\r\n",
        ),
        (
            "local n, t = pairs(redis) pcall(function() t.call = 5 end)",
            "return type(redis.call)",
            "$8\r\nfunction\r\n",
        ),
        ("pcall(function() getmetatable('').__index.upper = 5 end)", "return ('a'):upper()", "$1\r\nA\r\n"),
        ("pcall(setmetatable, _G, nil)", "return pcall(function() return nosuch end) and 1 or 0", ":0\r\n"),
        ("pcall(table.insert, string, 5)", "return #string", ":0\r\n"),
        (
            "pcall(table.sort, redis) pcall(table.remove, redis, 'x')",
            "return type(redis.call)",
            "$8\r\nfunction\r\n",
        ),
        (
            "pcall(table.foreach, redis, function(k, v) redis[k] = nil end)",
            "return type(redis.call)",
            "$8\r\nfunction\r\n",
        ),
        (
            "pcall(function() cjson.array_mt.__index = 5 end)",
            "return tostring(cjson.array_mt.__index)",
            "$3\r\nnil\r\n",
        ),
    ] {
        eval(&mut engine, &mut host, first, &[b"k"], &[b"a"]);
        assert_eq!(eval(&mut engine, &mut host, second, &[], &[]), expected, "{first}");
    }
}

#[test]
fn replies_become_lua_values() {
    for (reply, expression, expected) in [
        ("+OK\r\n", "r.ok", "$2\r\nOK\r\n"),
        ("-FOO bar\r\n", "'x'", "-FOO bar"),
        (":-5\r\n", "r", ":-5\r\n"),
        ("$-1\r\n", "tostring(r)", "$5\r\nfalse\r\n"),
        ("*-1\r\n", "tostring(r)", "$5\r\nfalse\r\n"),
        ("_\r\n", "tostring(r)", "$3\r\nnil\r\n"),
        ("#t\r\n", "tostring(r)", "$4\r\ntrue\r\n"),
        (",3.5\r\n", "tostring(r.double)", "$3\r\n3.5\r\n"),
        (",inf\r\n", "tostring(r.double)", "$3\r\ninf\r\n"),
        ("(123\r\n", "r.big_number", "$3\r\n123\r\n"),
        ("=7\r\ntxt:abc\r\n", "r.verbatim_string.format .. r.verbatim_string.string", "$6\r\ntxtabc\r\n"),
        ("%1\r\n+a\r\n:1\r\n", "next(r.map).ok", "$1\r\na\r\n"),
        ("%1\r\n$1\r\na\r\n:1\r\n", "r.map.a", ":1\r\n"),
        ("~1\r\n$1\r\na\r\n", "tostring(r.set.a)", "$4\r\ntrue\r\n"),
        ("%1\r\n_\r\n:1\r\n", "tostring(next(r.map))", "$3\r\nnil\r\n"),
        ("*3\r\n:1\r\n*1\r\n$1\r\na\r\n$-1\r\n", "r", "*3\r\n:1\r\n*1\r\n$1\r\na\r\n$-1\r\n"),
        ("|1\r\n+a\r\n+b\r\n:7\r\n", "r", ":7\r\n"),
        ("*2\r\n$1\r\na\r\n", "r", "malformed reply"),
        ("$5\r\nab", "r", "malformed reply"),
        ("", "r", "malformed reply"),
        ("?\r\n", "r", "malformed reply"),
    ] {
        let script = format!("local r = redis.call('raw', ARGV[1]) return {expression}");
        let mut engine = Engine::new(Limits::default());
        let got = eval(&mut engine, &mut Map::default(), &script, &[], &[reply.as_bytes()]);
        assert!(got.contains(expected), "{reply:?} {expression}: {got:?}");
    }
}

/// A reply that is not used is not converted. Every use of it gets it.
#[test]
fn a_reply_is_there_for_whoever_looks() {
    for (script, expected) in [
        ("redis.call('echo', 'a') return 1", ":1\r\n"),
        ("redis.pcall('nosuch') return 1", ":1\r\n"),
        ("redis.call('nosuch') return 1", "Unknown Redis command"),
        ("redis.call('raw', '-ERR no\\r\\n') return 1", "-ERR no"),
        ("redis.call('raw', 'malformed') return 1", ":1\r\n"),
        ("return select('#', redis.call('echo', 'a'))", ":1\r\n"),
        ("return select('#', redis.pcall('nosuch'))", ":1\r\n"),
        ("local function f() redis.call('echo', 'a') end return select('#', f())", ":0\r\n"),
        ("local function f() return redis.call('echo', 'a') end return f()", "$1\r\na\r\n"),
        ("local function f() return redis.call('echo', 'a') end f() return 1", ":1\r\n"),
        ("return {redis.call('echo', 'a'), redis.call('echo', 'b')}", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("local a, b = redis.call('echo', 'a') return {a, tostring(b)}", "*2\r\n$1\r\na\r\n$3\r\nnil\r\n"),
        ("local ok, a = pcall(redis.call, 'echo', 'a') return a", "$1\r\na\r\n"),
        ("pcall(redis.call, 'echo', 'a') return 1", ":1\r\n"),
        (
            "return coroutine.wrap(function() redis.call('set', 'a', 'b') return redis.call('get', 'a') end)()",
            "b\r\n",
        ),
        ("for i = 1, 3 do redis.call('set', 'n', i) end return redis.call('get', 'n')", "$1\r\n3\r\n"),
        ("if redis.call('get', 'none') then return 'there' end return 'not'", "$3\r\nnot\r\n"),
    ] {
        let got = once(script);
        assert!(got.contains(expected), "{script}: {got:?}");
    }
}

#[test]
fn numbers_reach_commands_as_redis_sends_them() {
    for (number, expected) in [
        ("1", "1"),
        ("1.0", "1"),
        ("-0.5", "-0.5"),
        ("0.1", "0.1"),
        ("1e15", "1000000000000000"),
        ("1e300", "1e+300"),
        ("2^53", "9007199254740992"),
        ("1/3", "0.3333333333333333"),
        ("1/0", "inf"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("math.floor(-0.0)", "0"),
        ("math.ceil(-0.5)", "0"),
        ("tonumber('-0')", "0"),
        ("cjson.decode('-0')", "0"),
        ("-1e-300", "-1e-300"),
        // As text it keeps its sign.
        ("'' .. -0", "-0"),
        ("tostring(-0)", "-0"),
        ("cjson.encode(-0)", "-0"),
        ("table.concat({-0})", "-0"),
        ("string.format('%s%d%g', -0, -0, -0)", "-00-0"),
        ("cmsgpack.unpack(cmsgpack.pack(-0))", "0"),
    ] {
        let got = once(&format!("return redis.call('echo', {number})"));
        assert_eq!(got, format!("${}\r\n{expected}\r\n", expected.len()), "{number}");
    }
    assert_eq!(
        once("local x = 0 return {redis.call('echo', -x), -x, {-x}}"),
        "*3\r\n$1\r\n0\r\n:0\r\n*1\r\n:0\r\n"
    );
    assert_eq!(
        once("local t = {} t[-0] = 'a' for k in pairs(t) do return {t[0], redis.call('echo', k)} end"),
        "*2\r\n$1\r\na\r\n$1\r\n0\r\n"
    );
}

#[test]
fn functions_keep_their_upvalues_until_deleted() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    let code = b"#!lua name=counter\nlocal n = 0\nredis.register_function('count', function(keys, args) n = n + #keys return n end)";
    let library = engine.load_library(code, &mut host).expect("loads");
    assert_eq!((library.name.as_str(), library.functions.len()), ("counter", 1));
    let callback = library.functions[0].callback;
    let call = |engine: &mut Engine| {
        let mut out = Vec::new();
        engine
            .call_function(callback, "count", &[b"k"], &[], &mut Map::default(), &mut out, false)
            .expect("runs");
        String::from_utf8_lossy(&out).into_owned()
    };
    assert_eq!(call(&mut engine), ":1\r\n");
    assert_eq!(call(&mut engine), ":2\r\n");
    engine.flush();
    assert_eq!(call(&mut engine), ":3\r\n");
    engine.flush_functions();
    assert!(call(&mut engine).starts_with("-ERR"));
}

#[test]
fn an_endless_library_is_stopped() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map { patience: Some(3), ..Map::default() };
    let error = engine.load_library(b"#!lua name=l\nwhile true do end", &mut host).expect_err("is stopped");
    assert_eq!(error, "ERR Error registering functions: ERR FUNCTION LOAD timeout");
    assert!(
        engine
            .load_library(b"#!lua name=l\nredis.register_function('f', function() end)", &mut Map::default())
            .is_ok()
    );
}

#[test]
fn an_engine_moves_between_threads() {
    let mut engine = Engine::new(Limits::default());
    eval(&mut engine, &mut Map::default(), "return 1", &[], &[]);
    let reply =
        std::thread::spawn(move || eval(&mut engine, &mut Map::default(), "return 2", &[], &[])).join();
    assert_eq!(reply.expect("no panic"), ":2\r\n");
}

#[test]
fn scripts_are_forgotten_when_there_are_too_many() {
    let mut engine = Engine::new(Limits { scripts_max: 10, ..Limits::default() });
    let first = engine.load(b"return 1").expect("compiles");
    for i in 0..10 {
        engine.load(format!("return {i} + 5").as_bytes()).expect("compiles");
    }
    assert!(!engine.has(&first));
    assert_eq!(engine.load(b"return 1"), Ok(first));
    assert!(engine.has(&first));
}

/// A script compiled by one engine works in another as if compiled there: lines of errors, flags, upvalues,
/// numbers.
#[test]
fn compiled_scripts_move_between_engines() {
    let scripts: [&[u8]; 4] = [
        b"return {1.5, 'a', -0.25, KEYS[1], ARGV[1]}",
        b"#!lua flags=no-writes\nlocal n = 0 local f = function(x) n = n + x return n end f(2) return f(3)",
        b"local t = {}\n\nreturn t.x.y",
        b"error('oh\\0no')",
    ];
    for script in scripts {
        let (mut one, mut two) = (Engine::new(Limits::default()), Engine::new(Limits::default()));
        let sha = one.load(script).expect("compiles");
        let compiled = one.compiled(&sha).expect("is there");
        assert!(two.compiled(&sha).is_none());
        two.load_compiled(sha, &compiled, &mut Map::default()).expect("loads");
        assert_eq!((one.flags(&sha), two.flags(&sha)), (Some(compiled.flags()), Some(compiled.flags())));
        let run = |engine: &mut Engine| {
            let mut out = Vec::new();
            let mut host = Map::default();
            engine.run(&sha, &[b"k"], &[b"v"], &mut host, &mut out, false).expect("ends");
            String::from_utf8_lossy(&out).into_owned()
        };
        assert_eq!(run(&mut one), run(&mut two));
    }
}

/// Scripts that are no longer used make room for new ones.
#[test]
fn scripts_make_room_for_new_ones() {
    let mut engine = Engine::new(Limits { memory_bytes: 4 << 20, ..Limits::default() });
    for i in 0..60 {
        let script = format!("{} return {i}", "local t = {1, 2} t[1] = t[2] + 5 ".repeat(180));
        let reply = eval(&mut engine, &mut Map::default(), &script, &[], &[]);
        assert_eq!(reply, format!(":{i}\r\n"));
        let large = format!("{} return {i}", "x = {1, 2} ".repeat(8_000));
        engine.load(large.as_bytes()).expect("compiles");
    }
}

#[test]
fn deep_nesting_ends_in_errors() {
    for script in [
        "local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
        "cjson.encode_max_depth(1000000) local t = {} for i = 1, 100000 do t = {t} end return cjson.encode(t)",
        "cjson.encode_max_depth(1000000) local t = {} for i = 1, 100000 do t = {a = t} end return cjson.encode(t)",
        "cjson.decode_max_depth(1000000) return cjson.decode(('['):rep(100000))",
        "cjson.decode_max_depth(1000000) return cjson.decode(('{\"a\":'):rep(100000))",
        "return cmsgpack.unpack(('\\145'):rep(100000))",
        "return loadstring('return ' .. ('('):rep(100000))()",
        "local t = {} for i = 1, 100000 do t = {t} end return t",
        "local t = {} for i = 1, 100000 do t = {map = {a = t}} end return t",
        "return redis.call('raw', ('*1\\r\\n'):rep(100000) .. ':1\\r\\n')",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local function f() return pcall(f) end return f()",
        "return {pcall(string.find, ('a'):rep(300000), ('a?'):rep(300000))}",
        "return {pcall(string.find, ('a'):rep(300000), ('('):rep(300000))}",
        "local function f(x) return (x:gsub('.', f)) end return f('a')",
        "return ('abc'):gsub('.', function(c) return (c:gsub('.', function(d) return d .. d end)) end)",
    ] {
        let reply = once(script);
        assert!(!reply.is_empty(), "{script}");
    }
}

/// A long call of a library asks whether to go on.
#[test]
fn libraries_ask_within_a_long_text_whether_to_go_on() {
    let prepare = [
        ("", "cjson.encode(long)"),
        ("", "cjson.encode({[long] = 1})"),
        ("local list = {} for i = 1, 64 do list[i] = string.rep('x', 65536) end", "cjson.encode(list)"),
        ("long = cjson.encode(long)", "cjson.decode(long)"),
        ("long = cjson.encode({string.rep('\"\\n', 2097152)})", "cjson.decode(long)"),
        ("long = string.rep(' ', 4194304) .. '1'", "cjson.decode(long)"),
        ("local list = {} for i = 1, 64 do list[i] = string.rep('x', 65536) end", "cmsgpack.pack(list)"),
        (
            "local list = {} for i = 1, 64 do list[i] = string.rep('x', 65536) end long = cmsgpack.pack(list)",
            "cmsgpack.unpack(long)",
        ),
        ("local list = {} for i = 1, 64 do list[i] = string.rep('x', 65536) end", "table.concat(list, ',')"),
    ];
    let begin = "local long = string.rep('x', 4194304) ";
    let asked = |script: &str| {
        let (mut engine, mut host) = (Engine::new(Limits::default()), Map::default());
        let reply = eval(&mut engine, &mut host, script, &[], &[]);
        assert!(!reply.starts_with('-') && !reply.starts_with("stopped"), "{script}: {reply}");
        host.asked
    };
    for (before, call) in prepare {
        let without = asked(&format!("{begin}{before} return 1"));
        let with = asked(&format!("{begin}{before} local r = {call} return 1"));
        // 4 MB, and a question for each 64 KB.
        assert!(with >= without + 60, "{call}: {without} and {with}");
        // It ends where it is told to.
        let (mut engine, mut host) = (Engine::new(Limits::default()), Map::default());
        host.patience = Some(without + 20);
        let reply =
            eval(&mut engine, &mut host, &format!("{begin}{before} local r = {call} return 1"), &[], &[]);
        assert_eq!(reply, "stopped: Killed", "{call}");
    }
}
