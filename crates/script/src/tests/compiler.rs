//! The compiler: it can be ended, its work grows linearly with the text, and its code is right.

use super::{Map, eval, once};
use crate::{Engine, Limits};

/// Texts of some size, each named after the part that makes it slow to compile.
fn texts(n: usize) -> Vec<(&'static str, String)> {
    let many = |piece: &str, n: usize| piece.repeat(n);
    let nested = |n: usize| {
        // For each name, the locals of all enclosing functions are searched.
        let locals = |f: usize| (0..n.min(150)).map(|i| format!("l{f}_{i}")).collect::<Vec<_>>().join(",");
        let around = n.min(60);
        let heads: String =
            (0..around).map(|f| format!("local {} local function f{f}() ", locals(f))).collect();
        format!("{heads}{}{}", many("g=g ", n / 10), many("end ", around))
    };
    vec![
        ("elseif", format!("local a if a then {}end", many("elseif a then a=1 ", n))),
        ("and", format!("local a return a{}", many(" and a", n))),
        ("or", format!("local a return a{}", many(" or a", n))),
        ("and or", format!("local a return a{}", many(" and a or a", n / 2))),
        ("not", format!("local a return not (a{})", many(" and not a", n))),
        ("if", many("if a then b=1 end ", n)),
        ("break", format!("while true do {}end", many("if a then break end ", n))),
        ("while", many("while a do b=1 end ", n)),
        ("comparisons", format!("local a if a==1{} then a=1 end", many(" or a==2", n))),
        ("comment", format!("--[[{}]]", many("x", 20 * n))),
        ("short comment", format!("--{}", many("x", 20 * n))),
        ("long string", format!("local a = [[{}]]", many("x", 20 * n))),
        ("brackets", format!("local a = [[{}]]", many("]=", 10 * n))),
        ("equals", format!("local a = [{}", many("=", 20 * n))),
        ("escapes", format!("local a = '{}'", many("\\065\\n", 3 * n))),
        ("name", many("x", 20 * n)),
        ("number", format!("return {}", many("1", 20 * n))),
        ("items", format!("return {{{}}}", many("1,", 5 * n))),
        ("fields", format!("return {{{}}}", (0..n).map(|i| format!("f{i}={i},")).collect::<String>())),
        ("functions", many("f=function()end ", n)),
        ("names around", nested(n)),
        ("lines", many("\n", 20 * n)),
        ("constants", format!("return {{{}}}", (0..n).map(|i| format!("{i}.5,")).collect::<String>())),
    ]
}

fn compile(text: &str, patience: Option<u32>) -> (Result<(), String>, u32) {
    let mut engine = Engine::new(Limits::default());
    let mut host = Map { patience, ..Map::default() };
    let made = engine.load_for(text.as_bytes(), &mut host).map(|_| ());
    assert_eq!(eval(&mut engine, &mut Map::default(), "return 5", &[], &[]), ":5\r\n");
    (made, host.asked)
}

#[test]
fn a_compilation_can_be_ended() {
    for (what, text) in texts(10_000) {
        let (_, all) = compile(&text, None);
        assert!(all >= 10, "{what}: {all}");
        let (made, asked) = compile(&text, Some(5));
        let error = made.expect_err(what);
        assert!(error.contains("script stopped") && asked == 6, "{what}: {asked} {error}");
        // A compilation within a script ends as the script does.
        let mut host = Map { patience: Some(all / 2), ..Map::default() };
        let script = "return loadstring(ARGV[1]) and 1";
        let reply = eval(&mut Engine::new(Limits::default()), &mut host, script, &[], &[text.as_bytes()]);
        assert_eq!(reply, "stopped: Killed", "{what}");
        let mut host = Map { patience: Some(5), ..Map::default() };
        let library = format!("#!lua name=l\n{text}");
        let error =
            Engine::new(Limits::default()).load_library(library.as_bytes(), &mut host).expect_err(what);
        assert_eq!(error, "ERR Error registering functions: ERR FUNCTION LOAD timeout", "{what}");
    }
}

/// The collector finds everything the compiler holds, also when the host ends it.
#[test]
fn texts_of_any_form_compile_or_are_refused() {
    let (n, every): (usize, &[u32]) = if cfg!(lua_collects) { (20, &[7]) } else { (60, &[1, 7, 1000]) };
    for (what, text) in texts(n) {
        for &hook_every in every {
            let mut engine = Engine::new(Limits { hook_every, ..Limits::default() });
            let made = engine.load(text.as_bytes());
            assert_eq!(made.is_err(), ["equals", "name"].contains(&what), "{what}: {made:?}");
            for patience in [0, 3, 20].into_iter().skip(2 * usize::from(cfg!(lua_collects))) {
                let mut host = Map { patience: Some(patience), ..Map::default() };
                let _ = Engine::new(Limits { hook_every, ..Limits::default() })
                    .load_for(text.as_bytes(), &mut host);
            }
            assert_eq!(eval(&mut engine, &mut Map::default(), "return 5", &[], &[]), ":5\r\n");
        }
    }
}

/// A text of twice the length takes twice as many questions.
#[test]
fn compiling_grows_with_the_text() {
    for ((what, short), (_, long)) in texts(10_000).into_iter().zip(texts(40_000)) {
        let ((_, few), (_, many)) = (compile(&short, None), compile(&long, None));
        assert!(many <= 5 * few + 10, "{what}: {few} and {many}");
    }
}

/// Taking over a compiled script lasts only as long as the host lets it.
#[test]
fn taking_over_a_compiled_script_can_be_ended() {
    let text = (0..20_000).map(|i| format!("f{i}='{i}' ")).collect::<String>();
    let (mut one, mut two) = (Engine::new(Limits::default()), Engine::new(Limits::default()));
    let sha = one.load(text.as_bytes()).expect("compiles");
    let compiled = one.compiled(&sha).expect("is there");
    let mut host = Map { patience: Some(5), ..Map::default() };
    assert!(two.load_compiled(sha, &compiled, &mut host).is_err() && !two.has(&sha));
    assert_eq!(host.asked, 6);
    two.load_compiled(sha, &compiled, &mut Map::default()).expect("loads");
    assert!(two.has(&sha));
}

#[test]
fn a_panic_of_the_host_reaches_who_compiles() {
    struct Broken;
    impl crate::Host for Broken {
        fn call(&mut self, _: &[&[u8]], _: bool, _: &mut Vec<u8>) {}
        fn log(&mut self, _: i32, _: &[u8]) {}
        fn acl_check(&mut self, _: &[&[u8]]) -> Result<bool, String> {
            Ok(true)
        }
        fn interrupt(&mut self) -> Option<crate::Stop> {
            panic!("a host's mistake")
        }
    }
    let mut engine = Engine::new(Limits::default());
    let text = "x=1 ".repeat(20_000);
    let run = std::panic::AssertUnwindSafe(|| engine.load_for(text.as_bytes(), &mut Broken));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(eval(&mut engine, &mut Map::default(), "return 5", &[], &[]), ":5\r\n");
    assert!(engine.load(text.as_bytes()).is_ok());
}

#[test]
fn a_compilation_that_needs_too_much_memory_is_refused() {
    let mut engine = Engine::new(Limits { memory_bytes: 4 << 20, ..Limits::default() });
    let text = (0..200_000).map(|i| format!("f{i}='{i}' ")).collect::<String>();
    let error = engine.load(text.as_bytes()).expect_err("is too large");
    assert!(error.contains("not enough memory"), "{error}");
    assert_eq!(eval(&mut engine, &mut Map::default(), "return 5", &[], &[]), ":5\r\n");
}

/// Long brackets around everything that may stand in them.
#[test]
fn long_brackets_are_read_as_ever() {
    for (text, expected) in [
        ("return [[a]]", "a"),
        ("return [==[a]]b]=]c]==]", "a]]b]=]c"),
        ("return [=[\nx]=]", "x"),
        ("return [=[]]=]", "]"),
        ("--[==[ ]] ]=] \n ]==] return 'b'", "b"),
        ("--[=x\n return 'c'", "c"),
        ("--[x\n return 'd'", "d"),
        ("local t = {[1]='e'} return t[1]", "e"),
        ("local t = {['[=']='f'} return t[ [[[=]] ]", "f"),
    ] {
        assert_eq!(once(text), format!("${}\r\n{expected}\r\n", expected.len()), "{text}");
    }
    let long = "=".repeat(100_000);
    assert_eq!(once(&format!("return [{long}[a]{long}]")), "$1\r\na\r\n");
    for (text, expected) in [
        ("return [=a", "invalid long string delimiter near '[='"),
        ("return [==", "invalid long string delimiter near '[=='"),
        ("return [[a]", "unfinished long string near '<eof>'"),
        ("--[[a", "unfinished long comment near '<eof>'"),
        ("return [[a[[b]]", "nesting of [[...]] is deprecated near '['"),
    ] {
        let reply = once(text);
        assert!(reply.contains(expected), "{text}: {reply}");
    }
}

/// A condition, to be evaluated for values of its variables.
enum Condition {
    Variable(usize),
    Constant(bool),
    Compare(usize, usize),
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
}

impl Condition {
    fn random(seed: &mut u64, depth: u32) -> Condition {
        let mut next = |n: u64| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) % n
        };
        let what = if depth == 0 { next(3) } else { next(10) };
        let (a, b) = (next(4) as usize, next(4) as usize);
        let mut inner = || Box::new(Condition::random(seed, depth - 1));
        match what {
            0 | 1 => Condition::Variable(a),
            2 if a == 0 => Condition::Constant(b > 1),
            2 => Condition::Compare(a, b),
            3 => Condition::Not(inner()),
            4..7 => Condition::And(inner(), inner()),
            _ => Condition::Or(inner(), inner()),
        }
    }

    fn text(&self) -> String {
        match self {
            Condition::Variable(at) => format!("v{at}"),
            Condition::Constant(value) => value.to_string(),
            Condition::Compare(a, b) => format!("(v{a} == v{b})"),
            Condition::Not(inner) => format!("not ({})", inner.text()),
            Condition::And(a, b) => format!("({} and {})", a.text(), b.text()),
            Condition::Or(a, b) => format!("({} or {})", a.text(), b.text()),
        }
    }

    fn value(&self, values: u32) -> bool {
        let of = |at: &usize| values >> at & 1 == 1;
        match self {
            Condition::Variable(at) => of(at),
            Condition::Constant(value) => *value,
            Condition::Compare(a, b) => of(a) == of(b),
            Condition::Not(inner) => !inner.value(values),
            Condition::And(a, b) => a.value(values) && b.value(values),
            Condition::Or(a, b) => a.value(values) || b.value(values),
        }
    }
}

/// Jumps lead to the right place: conditions of any form as values, in branches, and in loops with breaks.
#[test]
fn jumps_of_conditions_lead_where_they_should() {
    let mut seed = 17;
    let mut engine = Engine::new(Limits::default());
    for round in 0..400 {
        let conditions: Vec<Condition> =
            (0..6).map(|_| Condition::random(&mut seed, 1 + round % 6)).collect();
        let c: Vec<String> = conditions.iter().map(Condition::text).collect();
        let script = format!(
            "local out = ''
             for values = 0, 15 do
               local v0, v1, v2, v3 = values % 2 == 1, values % 4 > 1, values % 8 > 3, values > 7
               local x = {} local r = 0
               if {} then r = 1 elseif {} then r = 2 elseif {} then r = 3 else r = 4 end
               local n = 0
               while true do n = n + 1 if n > 2 then break end if {} then n = n + 10 break elseif {} then break end end
               repeat local y = n until {} or true
               out = out .. (x and 1 or 0) .. r .. n .. ' '
             end
             return out",
            c[0], c[1], c[2], c[3], c[4], c[5], c[0]
        );
        let expected: String = (0..16)
            .map(|values| {
                let of = |i: usize| conditions[i].value(values);
                let r = (1..4).find(|i| of(*i)).unwrap_or(4);
                let n = if of(4) {
                    11
                } else if of(5) {
                    1
                } else {
                    3
                };
                format!("{}{r}{n} ", u8::from(of(0)))
            })
            .collect();
        let reply = eval(&mut engine, &mut Map::default(), &script, &[], &[]);
        assert_eq!(reply, format!("${}\r\n{expected}\r\n", expected.len()), "{script}");
    }
    // Long conditions, whose lists are joined from both sides.
    let chain = (1..=3000).map(|i| format!("elseif a == {i} then r = {i} ")).collect::<String>();
    let script = format!(
        "local out = 0 for a = 0, 3001 do local r = 0 if a == -1 then {chain} end out = out + r end return out"
    );
    assert_eq!(once(&script), ":4501500\r\n");
    let any = (1..=3000).map(|i| format!(" or a == {i}")).collect::<String>();
    let all = (1..=3000).map(|i| format!(" and a ~= {i}")).collect::<String>();
    let script = format!(
        "local n, m = 0, 0 for a = 0, 3002 do local x = a == -1{any} if x then n = n + 1 end
         local y = not (a == 0{any}) or (a ~= -1{all}) if y then m = m + 1 end end return {{n, m}}"
    );
    assert_eq!(once(&script), "*2\r\n:3000\r\n:3\r\n");
}
