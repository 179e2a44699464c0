//! Lua texts for EVAL and FUNCTION LOAD. They call every function that a script can, with arguments at every
//! edge. Whole texts are large, deep, odd or endless.

use crate::words::{NUMBERS, Word};
use support::rng::Rng;

/// The functions a script can call, with their usual number of arguments.
const FUNCTIONS: &[(&str, usize)] = &[
    ("select", 3),
    ("unpack", 3),
    ("tonumber", 2),
    ("tostring", 1),
    ("pairs", 1),
    ("ipairs", 1),
    ("next", 2),
    ("type", 1),
    ("rawget", 2),
    ("rawset", 3),
    ("rawequal", 2),
    ("setmetatable", 2),
    ("getmetatable", 1),
    ("assert", 2),
    ("error", 2),
    ("pcall", 3),
    ("xpcall", 2),
    ("loadstring", 2),
    ("load", 2),
    ("collectgarbage", 2),
    ("string.byte", 3),
    ("string.char", 3),
    ("string.find", 4),
    ("string.format", 4),
    ("string.gmatch", 2),
    ("string.gsub", 4),
    ("string.len", 1),
    ("string.lower", 1),
    ("string.match", 3),
    ("string.rep", 2),
    ("string.reverse", 1),
    ("string.sub", 3),
    ("string.upper", 1),
    ("table.concat", 4),
    ("table.insert", 3),
    ("table.maxn", 1),
    ("table.getn", 1),
    ("table.remove", 2),
    ("table.sort", 2),
    ("math.abs", 1),
    ("math.ceil", 1),
    ("math.floor", 1),
    ("math.fmod", 2),
    ("math.frexp", 1),
    ("math.ldexp", 2),
    ("math.log", 1),
    ("math.max", 3),
    ("math.modf", 1),
    ("math.pow", 2),
    ("math.random", 2),
    ("math.randomseed", 1),
    ("bit.tobit", 1),
    ("bit.tohex", 2),
    ("bit.lshift", 2),
    ("bit.arshift", 2),
    ("bit.rol", 2),
    ("bit.bswap", 1),
    ("bit.band", 3),
    ("cjson.encode", 1),
    ("cjson.decode", 1),
    ("cjson.encode_max_depth", 1),
    ("cjson.decode_max_depth", 1),
    ("cjson.encode_sparse_array", 3),
    ("cjson.encode_number_precision", 1),
    ("cmsgpack.pack", 3),
    ("cmsgpack.unpack", 1),
    ("cmsgpack.unpack_limit", 3),
    ("cmsgpack.unpack_one", 2),
    ("struct.pack", 4),
    ("struct.unpack", 3),
    ("struct.size", 1),
    ("coroutine.create", 1),
    ("coroutine.wrap", 1),
    ("coroutine.resume", 2),
    ("redis.sha1hex", 1),
    ("redis.error_reply", 1),
    ("redis.status_reply", 1),
    ("redis.log", 2),
    ("redis.setresp", 1),
    ("redis.acl_check_cmd", 3),
    ("redis.breakpoint", 0),
    ("redis.debug", 2),
    ("redis.set_repl", 1),
    ("os.clock", 0),
];

const VALUES: &[&str] = &[
    "nil",
    "true",
    "{}",
    "{1,2,3}",
    "{[1]=1,[2147483647]=2}",
    "{[0]=1,[-1]=2,a={}}",
    "string",
    "print",
    "function(...) return ... end",
    "function() error({}) end",
    "''",
    "'abc'",
    "'a\\0b'",
    "'%'",
    "'%d%s%f%q%c'",
    "'%99999d'",
    "'%.99999f'",
    "'%b()'",
    "'%f[a]'",
    "'[a-'",
    "'[^'",
    "'(()'",
    "'.-b'",
    "'>i8'",
    "'<!16i7'",
    "'s0'",
    "'c2147483647'",
    "'[[[[[[1]]]]]]'",
    "'{\"a\":1e999}'",
    "'\\221\\255\\255\\255\\255'",
    "('x'):rep(70000)",
    "('ab'):rep(3000)",
    "('['):rep(200)",
    "ARGV",
    "ARGV[1]",
    "KEYS",
    "coroutine.create(function() end)",
    "0/0",
    "1/0",
    "-1/0",
    "-0",
    "2^31",
    "-2^31",
    "2^53",
    "2^63",
    "-2^63",
    "1e308",
];

/// Complete special texts.
const TEXTS: &[&str] = &[
    "return redis.call('GET', KEYS[1])",
    "return redis.call('INCR', 'n')",
    "while true do end",
    "while true do redis.call('GET', 'none') end",
    "local i = 0 while true do i = i + 1 redis.call('SET', 'w' .. i % 100, i) end",
    "for i = 1, 300000 do end return 1",
    "for i = 1, 3000 do redis.call('SET', 'w' .. i, i) end return 1",
    "local t = {} for i = 1, 1000 do t[i] = redis.call('GET', 's' .. i % 5) end return t",
    "return redis.call('KEYS', '*')",
    "return {1, 'a', {2, {3}}, false, nil, 4}",
    "local t = {} t[1] = t return t",
    "return {err = 'E'}",
    "return {ok = 'a\\r\\nb'}",
    "return {err = 'a\\r\\nb'}",
    "return {double = 0/0}",
    "return {map = {a = 1}}",
    "redis.setresp(3) return redis.call('HGETALL', 'h0')",
    "return redis.pcall('EVAL', 'return 1', 0)",
    "return redis.call()",
    "return redis.call('GET', {}, print)",
    "return redis.call('SET', 'k', -0)",
    "return ('x'):rep(1000000)",
    "return string.rep('x', 2147483647)",
    "local s = 'x' for i = 1, 40 do s = s .. s end return #s",
    "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(100000) .. i end",
    "return loadstring('return ' .. ('('):rep(190) .. '1' .. (')'):rep(190))()",
    "return loadstring(('if a then '):rep(100) .. ('end '):rep(100))",
    "local f f = function() return f() end return f()",
    "local f f = function() return 1 + f() end return pcall(f)",
    "local a = setmetatable({}, {__index = function(t, k) return t[k .. 'x'] end}) return a.b",
    "getmetatable('').__index = nil return 1",
    "string.rep = nil",
    "_G.x = 1",
    "#!lua\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('SET', 'a', 1)",
    "#!lua flags=,,,\nreturn 1",
    "#!lua name=x flags=no-writes,allow-oom\nreturn 1",
    "#!lua \0\nreturn 1",
    "#!\nreturn 1",
    "#!lua",
    "#!lua flags\nreturn 1",
    "\x1bLua",
    "return",
    "",
    "\0",
    "return 'a\0b'",
    "x =",
    "--",
    "return redis.call('DEBUG', 'OBJECT', 's0')",
    "redis.call('FLUSHALL') return redis.call('DBSIZE')",
    "redis.call('PUBLISH', 'c0', ('x'):rep(1000)) return 1",
    "local c = coroutine.wrap(function() for i = 1, 1e9 do coroutine.yield(i) end end) for i = 1, 10000 do c() end",
];

/// A text for EVAL.
pub fn text(rng: &mut Rng) -> Word {
    match rng.below(10) {
        0 | 1 => function(rng).into_bytes(),
        2 | 3 => sweep(rng).into_bytes(),
        4 => nested(rng).into_bytes(),
        5 => large(rng).into_bytes(),
        6 => header(rng),
        _ => rng.pick(TEXTS).as_bytes().to_vec(),
    }
}

/// Some functions with all pairs of numbers at the edges of an int, behind other values.
fn sweep(rng: &mut Rng) -> String {
    let functions: Vec<&str> = (0..8).map(|_| rng.pick(FUNCTIONS).0).collect();
    let values: Vec<&str> = (0..3).map(|_| *rng.pick(VALUES)).collect();
    let form = *rng.pick(&["f(a, b)", "f(x, a, b)", "f(x, a, b)", "f(x, '', a, b)", "f(a, x, b)"]);
    format!(
        "local e = {{-2147483648, -2147483647, -1, 0, 1, 7999, 8000, 2147483646, 2147483647, 1/0, -1/0, 0/0}} \
         for _, f in ipairs({{{}}}) do for _, x in ipairs({{{{}}, {}}}) do \
         for _, a in ipairs(e) do for _, b in ipairs(e) do \
         pcall(function() return select('#', {form}) end) end end end end return 1",
        functions.join(", "),
        values.iter().filter(|value| **value != "nil").copied().collect::<Vec<_>>().join(", ")
    )
}

/// Calls of functions, each protected on its own.
fn function(rng: &mut Rng) -> String {
    if rng.percent(40) {
        return format!("return {}", call(rng));
    }
    let calls: Vec<String> = (0..rng.between(2, 12)).map(|_| call(rng)).collect();
    let lines = calls.iter().map(|call| format!("pcall(function() return {call} end)"));
    format!("{} return 1", lines.collect::<Vec<_>>().join(" "))
}

/// One call of one function.
fn call(rng: &mut Rng) -> String {
    let (name, usual) = *rng.pick(FUNCTIONS);
    let count = if rng.percent(80) { usual } else { rng.below(6) };
    let args: Vec<String> = (0..count).map(|_| argument(rng)).collect();
    match rng.below(4) {
        0 => format!("select('#', {name}({}))", args.join(", ")),
        1 => format!("pcall({})", [&[name.to_owned()], &args[..]].concat().join(", ")),
        2 => format!("{{{name}({})}}", args.join(", ")),
        _ => format!("{name}({})", args.join(", ")),
    }
}

fn argument(rng: &mut Rng) -> String {
    match rng.below(3) {
        0 => rng.pick(VALUES).to_string(),
        1 => lua_number(rng.pick(NUMBERS)),
        _ => rng.integer(-3, 9).to_string(),
    }
}

/// A number as a Lua literal, or as a string.
fn lua_number(text: impl AsRef<str>) -> String {
    let text = text.as_ref();
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && !text.starts_with('+') => text.trim().to_owned(),
        _ => format!("'{text}'"),
    }
}

/// Nested scripts, and nested structures.
fn nested(rng: &mut Rng) -> String {
    let depth = *rng.pick(&[1, 5, 50, 190, 201, 1000]);
    match rng.below(5) {
        0 => format!("return {}{}", "{".repeat(depth), "}".repeat(depth)),
        1 => format!("return {}1{}", "(".repeat(depth), ")".repeat(depth)),
        2 => format!("return cjson.decode(('['):rep({depth}) .. (']'):rep({depth}))"),
        3 => format!("local t = {{}} for i = 1, {depth} do t = {{t}} end return t"),
        _ => format!("local t = {{}} for i = 1, {depth} do t = {{t}} end return cmsgpack.pack(t)"),
    }
}

fn large(rng: &mut Rng) -> String {
    let times = *rng.pick(&[100, 250, 3000, 20_000]);
    match rng.below(5) {
        0 => format!("local a = 1 {} return a", "a = a + 1 ".repeat(times)),
        1 => format!("if a then {} end return 1", "elseif a then ".repeat(times)),
        2 => (0..times).map(|i| format!("local a{i} = {i}\n")).collect::<String>() + "return 1",
        3 => format!("return '{}'", "x".repeat(times * 10)),
        _ => format!("return {{{}}}", "1,".repeat(times)),
    }
}

/// Parts of first lines.
const HEADERS: &[&[u8]] = &[
    b" ",
    b"  ",
    b"\t",
    b"\0",
    b" \0",
    b"\r",
    b"\x0b",
    b"\x0c ",
    b" flags=no-writes",
    b" flags=",
    b" flags=allow-oom,x",
    b" name=lib",
    b" name=",
    b"=",
    b"\xff",
    b"\"",
    b"'",
    b" \" ",
    b" name=\"",
];

/// A first line of a script or library, with odd bytes.
fn header(rng: &mut Rng) -> Word {
    let mut line = b"#!lua".to_vec();
    for _ in 0..rng.below(5) {
        line.extend_from_slice(HEADERS[rng.below(HEADERS.len())]);
    }
    line.extend_from_slice(b"\nreturn 1");
    line
}

/// A text for FUNCTION LOAD.
pub fn library(rng: &mut Rng) -> Word {
    match rng.below(6) {
        0 => header(rng),
        1 => format!("#!lua name=lib{}\n{}", rng.below(3), function(rng)).into_bytes(),
        2 => format!("#!lua name=lib{}\nwhile true do end", rng.below(3)).into_bytes(),
        3 => format!(
            "#!lua name=lib{}\nredis.register_function({}, {})",
            rng.below(3),
            argument(rng),
            argument(rng)
        )
        .into_bytes(),
        _ => LIBRARY.as_bytes().to_vec(),
    }
}

const LIBRARY: &str = "#!lua name=fuzz
redis.register_function('f_get', function(keys) return redis.call('GET', keys[1] or 's0') end)
redis.register_function{function_name='f_all', callback=function(keys, args) return {keys, args} end, flags={'no-writes'}}
redis.register_function('f_loop', function() while true do end end)
";
