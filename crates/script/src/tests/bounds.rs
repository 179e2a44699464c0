//! Bounds on hostile scripts: their memory, and their work between two questions.

use std::sync::Arc;

use stdx::budget::Budget;

use super::{Map, eval};
use crate::lua::peak_of;
use crate::{Engine, Limits, Sha};

const MB: usize = 1 << 20;

/// Scripts that want more memory than there is, at once or bit by bit.
const GREEDY: &[&str] = &[
    "return (('a'):rep(1e6):gsub('a', ('b'):rep(100)))",
    "local s = ('a'):rep(1e5) for i = 1, 10 do s = s:gsub('a', s:sub(1, 1e5)) end return s",
    "return (('a'):rep(1e6):gsub('a+', '%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0%0'))",
    "return (('a'):rep(1e6):gsub('.', function() return ('x'):rep(1000) end))",
    "return (('a'):rep(1e6):gsub('.', {a = ('x'):rep(1000)}))",
    "return cjson.encode(many)",
    "return cjson.encode({[('\\1'):rep(8e6)] = 1})",
    "cjson.encode_sparse_array(true, 0, 0) return cjson.encode({[2 ^ 30] = 1})",
    "return cjson.decode('[' .. ('[],'):rep(2e6) .. '1]')",
    "return cjson.decode('\"' .. ('\\\\n'):rep(5e6) .. '\"') .. many[1]:rep(10)",
    "return cmsgpack.pack(many)",
    "return cmsgpack.pack(unpack(many))",
    "local t = {} for i = 1, 3000 do t[i] = '\\221\\255\\255\\255\\255' end
     return cmsgpack.unpack(table.concat(t) .. ('\\1'):rep(2e6))",
    "return {cmsgpack.unpack(cmsgpack.pack(unpack(many, 1, 8)))}",
    "return struct.pack(('s'):rep(100), unpack(many))",
    "return struct.pack(('x'):rep(8e6)) .. many[1]:rep(9)",
    "return table.concat(many)",
    "return table.concat(many, many[1])",
    "return string.format(('%s'):rep(99), unpack(many, 1, 99))",
    "return string.format('%q', ('\\n'):rep(9e6))",
    "return many[1]:rep(100)",
    "return ('x'):rep(3e7)",
    "return many",
    "return {map = {a = many}}",
    "return {err = many[1]:rep(7)}",
    "local s = 'x' while true do s = s .. s end",
    "local s = many[1] for i = 1, 99 do s = s .. many[1] end return s",
    "return (many[1]:rep(9) .. 'x'):upper():lower():reverse()",
    "local t = {} for i = 1, 1e9 do t[i] = i end",
    "local t = {} for i = 1, 1e9 do t['k' .. i] = i end",
    "local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) end",
    "local t = {} for i = 1, 1e9 do t[i] = function() return i end end",
    "local t = {} for i = 1, 1e9 do t[i] = many[1]:sub(i) end",
    "local t = {} for m in many[1]:gmatch('()') do t[#t + 1] = many[1]:match('(.*)') .. m end",
    "local t = {} for i = 1, 99 do t[i] = {(many[1] .. i):find('((((((((((.*))))))))))')} end",
    "return redis.error_reply(many[1]:rep(8))",
    "return redis.status_reply(many[1]:rep(8))",
    "error(many[1]:rep(9))",
    "return _G[many[1]:rep(9)]",
    "return loadstring('return \"' .. many[1]:rep(8) .. '\"')()",
    "return loadstring(('x = 1 '):rep(2e6))",
    "return redis.call('echo', many[1]:rep(8))",
    "local t = {} for i = 1, 99 do t[i] = redis.call('echo', many[1] .. i) end",
    "local t = {} for i = 1, 9 do t[i] = redis.call('raw', ARGV[1]) end return t",
    "local function f(n) local a, b, c, d, e = {}, {}, {}, {}, {} return f(n + 1) + 1 end return f(1)",
    "redis.log(redis.LOG_WARNING, unpack(many))",
];

/// The most that a refused script may have held above the limit: the slack, and memory that no script makes.
/// A growing table briefly has its old places as well.
const BESIDE: usize = 2 * MB;

#[test]
fn no_script_holds_more_than_its_limit_and_is_told_which_it_was() {
    let wide: Vec<u8> = [b"*400000\r\n".as_slice(), &b":1\r\n".repeat(400_000)].concat();
    let limit = 12 * MB;
    let mut wrong = Vec::new();
    for script in GREEDY {
        for by_budget in [false, true] {
            let budget = Arc::new(Budget::default());
            let mut limits = Limits::default();
            match by_budget {
                true => {
                    budget.set_limit(limit as u64);
                    limits.budget = Some(budget.clone());
                }
                false => limits.memory_bytes = limit,
            }
            let mut engine = Engine::new(limits);
            let mut host = Map::default();
            let script = format!(
                "local many, one = {{}}, ('x'):rep(1e6) for i = 1, 100 do many[i] = one end {script}"
            );
            let sha = engine.load(script.as_bytes()).unwrap();
            let run = || {
                let mut out = Vec::new();
                let ended = engine.run(&sha, &[], &[&wide], &mut host, &mut out, false);
                assert_eq!(ended, Ok(()));
                String::from_utf8_lossy(&out[..out.len().min(300)]).into_owned()
            };
            let (reply, peak, _) = peak_of(run);
            if peak >= limit + limit / 3 + BESIDE {
                wrong.push(format!("{script}: {peak} of {limit}, {reply}"));
            }
            let told = if by_budget { "work-max-memory" } else { "lua-memory-limit" };
            let fits = script.contains("redis.log") || script.contains("stack overflow");
            let refused = reply.starts_with('-') && reply.contains(told);
            if !refused && !fits && !reply.contains("stack overflow") {
                wrong.push(format!("{script}: {reply}"));
            }
            // The next script has all of the memory.
            engine.tidy();
            while !engine.collect_step(100) {}
            let after = eval(&mut engine, &mut host, "return #('x'):rep(2e6)", &[], &[]);
            assert_eq!(after, ":2000000\r\n", "{script}");
            drop(engine);
            assert_eq!(budget.used(), 0, "{script}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_a_script_catches_names_the_directive_too() {
    for (by_budget, told) in [(false, "lua-memory-limit"), (true, "work-max-memory")] {
        let budget = Arc::new(Budget::default());
        budget.set_limit(8 << 20);
        let limits = Limits {
            memory_bytes: if by_budget { 0 } else { 8 << 20 },
            budget: by_budget.then(|| budget.clone()),
            ..Limits::default()
        };
        let mut engine = Engine::new(limits);
        for script in [
            "local ok, text = pcall(function() local s = 'xy' while true do s = s .. s end end) return text",
            "local ok, text = pcall(function() local t = {} while true do t[#t + 1] = {} end end) return text",
            "local ok, text = pcall(string.rep, 'x', 1e7) return text",
            "local ok, text = xpcall(function() local t = {} while true do t[#t + 1] = {} end end,
                function(e) return e end) return text",
            "local co = coroutine.create(function() local s = 'xy' while true do s = s .. s end end)
             local ok, text = coroutine.resume(co) return text",
        ] {
            let reply = eval(&mut engine, &mut Map::default(), script, &[], &[]);
            assert!(reply.starts_with('$') && reply.contains(told), "{script}: {reply}");
        }
        // Without a `pcall`.
        let reply =
            eval(&mut engine, &mut Map::default(), "local s = 'x' while true do s = s .. s end", &[], &[]);
        assert!(reply.starts_with("-ERR ") && reply.contains(told) && reply.contains(" script: "), "{reply}");
    }
}

#[test]
fn arguments_ask_before_they_are_copied() {
    let budget = Arc::new(Budget::default());
    budget.set_limit(MB as u64);
    let mut engine = Engine::new(Limits { budget: Some(budget.clone()), ..Limits::default() });
    let mut host = Map::default();
    let large = vec![b'x'; 16 * MB];
    let script = "redis.call('set', 'a', 'b') return #ARGV[1]";
    let refused = "-ERR this command needs more memory than 'work-max-memory' allows\r\n";
    let (reply, peak, _) = peak_of(|| eval(&mut engine, &mut host, script, &[], &[&large]));
    assert_eq!(reply, refused);
    assert!(peak < MB && host.calls == 0, "{peak}");
    // Many short strings take more than their bytes.
    let many = vec![b"x".as_slice(); 100_000];
    assert_eq!(eval(&mut engine, &mut host, script, &[], &many), refused);
    assert_eq!(eval(&mut engine, &mut host, script, &[], &[&large[..1000]]), ":1000\r\n");
    assert!(budget.used() < MB as u64 / 2);
}

#[test]
fn garbage_of_a_script_that_has_ended_is_given_back() {
    let budget = Arc::new(Budget::default());
    let mut engine = Engine::new(Limits { budget: Some(budget.clone()), ..Limits::default() });
    let mut host = Map::default();
    let empty = {
        eval(&mut engine, &mut host, "return 1", &[], &[]);
        engine.memory_used()
    };
    let script = "local t = {} for i = 1, 20 do t[i] = ('x'):rep(1e6) .. i end return #t";
    assert_eq!(eval(&mut engine, &mut host, script, &[], &[]), ":20\r\n");
    assert!(engine.has_garbage() && budget.used() > 20_000_000, "{}", budget.used());
    // At once, together with compiled scripts.
    engine.tidy();
    assert!(engine.memory_used() <= empty && !engine.has_garbage());
    assert_eq!(budget.used(), 0);
    assert!(!engine.has(&Sha::of(script.as_bytes())));
    // Or in steps, which keep compiled scripts.
    assert_eq!(eval(&mut engine, &mut host, script, &[], &[]), ":20\r\n");
    let mut steps = 0;
    while !engine.collect_step(1) {
        steps += 1;
    }
    assert!(steps > 20, "a step is a small part of it: {steps}");
    assert!(engine.memory_used() < empty + MB, "{} {empty}", engine.memory_used());
    assert!(budget.used() < 2 * MB as u64, "{}", budget.used());
    assert!(engine.has(&Sha::of(script.as_bytes())));
    // A little garbage is left alone.
    assert_eq!(eval(&mut engine, &mut host, "return #('x'):rep(1e5)", &[], &[]), ":100000\r\n");
    engine.tidy();
    assert!(engine.has(&Sha::of(script.as_bytes())));
}

#[test]
fn garbage_of_functions_is_collected_and_their_upvalues_stay() {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map::default();
    let code = b"#!lua name=f\nlocal kept = {}\nredis.register_function('f', function()
        local t = {} for i = 1, 20 do t[i] = ('x'):rep(1e6) .. i end
        kept[#kept + 1] = #t return #kept end)";
    let library = engine.load_library(code, &mut host).unwrap();
    let callback = library.functions[0].callback;
    for expected in [":1\r\n", ":2\r\n"] {
        let mut out = Vec::new();
        engine.call_function(callback, "f", &[], &[], &mut host, &mut out, false).unwrap();
        assert_eq!(out, expected.as_bytes());
        engine.tidy();
        // With a collection at every allocation there is none.
        let garbage = engine.functions_memory_used() > 20 * MB && engine.has_garbage();
        assert!(garbage || cfg!(lua_collects));
        while !engine.collect_step(10) {}
        assert!(engine.functions_memory_used() < MB, "{}", engine.functions_memory_used());
    }
}

/// Setup, repeated work, and about how many bytes are read or copied in all.
const LABOUR: &[(&str, &str, usize)] = &[
    ("local a, b = ('a'):rep(80), '[' .. ('b'):rep(50000) .. ']'", "local x = a:find(b)", 4_000_000),
    ("local a, b = ('a'):rep(80), '[' .. ('b'):rep(50000) .. ']*x'", "local x = a:match(b)", 4_000_000),
    ("local a, b = ('a'):rep(80), 'a-[' .. ('b'):rep(2000) .. ']'", "local x = a:match(b)", 2_000_000),
    ("local a, b = ('a'):rep(80), '[' .. ('b'):rep(50000) .. 'a]*x'", "local x = a:match(b)", 4_000_000),
    ("local a, b = ('a'):rep(80), '%f[' .. ('b'):rep(50000) .. ']'", "local x = a:find(b)", 4_000_000),
    ("local a = ('('):rep(2000)", "local x = a:find('%b()')", 2_000_000),
    ("local a = ('a'):rep(2000)", "local x = a:find('a*b')", 2_000_000),
    ("local a = ('a'):rep(1500)", "local x = a:find('(a*)%1b')", 1_000_000),
    (
        "local a, b = ('a'):rep(2e6), ('a'):rep(1000) .. 'b'",
        "for i = 1, 2 do local x = a:find(b, 1, true) end",
        4_000_000,
    ),
    ("local b = ('b'):rep(100000)", "for i = 1, 20 do local x = ('a'):find(b) end", 2_000_000),
    ("local b = ('b'):rep(100000)", "for i = 1, 20 do local x = ('a'):gmatch(b)() end", 2_000_000),
    ("local a, b = ('a'):rep(20), ('b'):rep(100000)", "local x = a:gsub('a', b)", 2_000_000),
    (
        "local a, b = ('a'):rep(20), ('b'):rep(100000)",
        "local x = a:gsub('a', function() return b end)",
        2_000_000,
    ),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = a:gsub('x', 'y') end", 2_000_000),
    ("local a = ('a'):rep(2000)", "local x = a:gsub('.*', ('%0'):rep(1000))", 2_000_000),
    ("", "for i = 1, 20 do local x = ('ab'):rep(50000 + i) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = (a .. i):upper() end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = (a .. i):lower() end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = (a .. i):reverse() end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = a:sub(i) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = string.format('%s%d', a, i) end", 2_000_000),
    ("local a = ('\"'):rep(50000)", "for i = 1, 20 do local x = string.format('%q', a .. i) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = string.format(a .. '%d', i) end", 2_000_000),
    ("local a = ('a'):rep(7000)", "for i = 1, 300 do local x = a:byte(1, 7000) end", 2_000_000),
    (
        "local a = {} for i = 1, 1000 do a[i] = ('a'):rep(100) end",
        "for i = 1, 20 do a[1] = i .. 'x' local x = table.concat(a) end",
        2_000_000,
    ),
    (
        "local a = {} for i = 1, 60 do a[i] = ('a'):rep(20000) .. i end",
        "local b = {} for i = 1, 60 do b[i] = a[61 - i] end table.sort(b)",
        4_000_000,
    ),
    (
        "local a = ('a'):rep(100000) local b, c = a .. 'b', a .. 'c'",
        "for i = 1, 20 do local x = b < c end",
        500_000,
    ),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = a .. i end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = a + i end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = -a end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = tonumber(a) end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = tonumber(a, 8) end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = math.floor(a) end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do local x = bit.bnot(a) end", 2_000_000),
    ("local a = ('0'):rep(100000)", "for i = 1, 20 do for j = a, 0 do end end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = cjson.encode(a) end", 2_000_000),
    (
        "local a = {} for i = 1, 10000 do a[i] = 'k' .. i end",
        "for i = 1, 20 do local x = cjson.encode(a) end",
        1_000_000,
    ),
    (
        "local a = '[' .. ('1,'):rep(50000) .. '1]'",
        "for i = 1, 10 do local x = cjson.decode(a) end",
        1_000_000,
    ),
    (
        "local a = '[' .. ('1'):rep(100000) .. ']'",
        "for i = 1, 20 do local x = cjson.decode(a) end",
        2_000_000,
    ),
    ("local a = '[' .. (' '):rep(60000) .. ']'", "for i = 1, 20 do local x = cjson.decode(a) end", 1_000_000),
    (
        "local a = '\"' .. ('\\\\n'):rep(30000) .. '\"'",
        "for i = 1, 20 do local x = cjson.decode(a) end",
        1_000_000,
    ),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = cmsgpack.pack(a) end", 2_000_000),
    (
        "local a = cmsgpack.pack(('a'):rep(100000))",
        "for i = 1, 20 do local x = cmsgpack.unpack(a) end",
        2_000_000,
    ),
    ("local a = ('\\1'):rep(100000)", "for i = 1, 20 do local x = cmsgpack.unpack_one(a, i) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = struct.pack('s', a) end", 2_000_000),
    ("local a = ('x'):rep(100000)", "for i = 1, 20 do local x = struct.pack(a) end", 2_000_000),
    ("local a = ('x'):rep(100000)", "for i = 1, 20 do local x = struct.size(a) end", 2_000_000),
    ("local a = ('1'):rep(100000)", "for i = 1, 20 do pcall(struct.size, 'b' .. a) end", 2_000_000),
    (
        "local a = ('a'):rep(100000) .. '\\0'",
        "for i = 1, 20 do local x = struct.unpack('s', a) end",
        2_000_000,
    ),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = struct.unpack('b', a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = redis.sha1hex(a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do redis.call('echo', a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do pcall(redis.acl_check_cmd, 'get', a) end", 2_000_000),
    ("local a = ('a'):rep(30000)", "for i = 1, 70 do redis.log(3, a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = redis.error_reply(a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do local x = redis.status_reply(a) end", 2_000_000),
    ("local a = ('a'):rep(100000)", "for i = 1, 20 do pcall(function() return _G[a] end) end", 2_000_000),
    ("local a = ('x=1 '):rep(9000)", "for i = 1, 20 do local x = loadstring(a) end", 700_000),
    (
        "local t = {} for i = 1, 7000 do t[i] = i end",
        "for i = 1, 20 do local x = select('#', unpack(t)) end",
        1_000_000,
    ),
    ("local t = {} for i = 1, 7000 do t[i] = i end", "for i = 1, 20 do table.insert(t, 1, i) end", 1_000_000),
    ("", "for i = 1, 20 do collectgarbage() end", 2_000_000),
    ("", "for i = 1, 20 do collectgarbage('step') end", 1_000_000),
];

/// Bytes that may be read per question, on average.
const UNASKED: usize = 256 << 10;

#[test]
fn whatever_looks_at_bytes_asks_in_proportion_and_can_be_ended() {
    let mut wrong = Vec::new();
    for (before, work, bytes) in LABOUR {
        let run = |script: &str, patience: Option<u32>| {
            let mut host = Map { patience, ..Map::default() };
            let reply = eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[]);
            (reply, host.asked)
        };
        let (reply, idle) = run(&format!("{before} return 1"), None);
        assert_eq!(reply, ":1\r\n", "{before}");
        let script = format!("{before} {work} return 1");
        let (reply, asked) = run(&script, None);
        assert_eq!(reply, ":1\r\n", "{script}");
        let least = (bytes / UNASKED) as u32;
        if asked - idle < least {
            wrong.push(format!("{script}: {} questions, not {least}", asked - idle));
            continue;
        }
        // Any question that is answered with a stop is the last.
        let patience = idle + (asked - idle) / 2;
        let (reply, asked) = run(&script, Some(patience));
        if (reply.as_str(), asked) != ("stopped: Killed", patience + 1) {
            wrong.push(format!("{script}: {reply} after {asked}, not {patience}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
