//! Lua's patterns: `string.find`, `match`, `gmatch` and `gsub`.
//!
//! Lua's own matcher may backtrack without end (`('a'):rep(100):find('.-.-.-.-.-b')`) where no hook reaches
//! it, and a long pattern overflows the C stack. This matcher takes the same steps, with two differences:
//!
//! * **P1** The host is asked every few thousand steps whether the script may go on. Each byte that is looked
//!   at or copied is a step.
//! * **P2** At most `DEPTH_MAX` matches are nested ("pattern too complex"): captures, and single characters
//!   before `?`, `*`, `+` or `-`.
//!
//! As in Lua 5.1 a pattern ends at its first NUL; `%z` matches one.

use crate::lua::{Buffer, Outcome, Raise, State, Step, Type, calling, native};
use crate::reply::ONE;

const DEPTH_MAX: u32 = 200;
const CAPTURES_MAX: usize = 32;
/// Steps that are reported to the state at once.
const STEPS: u32 = 256;
/// Steps that count as one element.
const STEPS_PER_TICK: u32 = 4;
/// Bytes that a fast search reads at a time.
const PIECE: usize = 64 << 10;

/// Replaces functions of the string library on top.
pub(crate) fn replace_functions(s: &mut State<'_>) {
    for (name, function) in [("find", native(find)), ("match", native(match_)), ("gmatch", native(gmatch))] {
        s.push_native(function, 0);
        s.set_field(-2, name);
    }
    let compiled = s.load(b"local t, k = ... return t[k]", c"=gsub");
    assert!(compiled.is_ok());
    s.push_native(calling(gsub), 1);
    s.set_field(-2, "gsub");
}

// ---- the matcher

#[derive(Clone, Copy)]
enum Length {
    Open,
    Position,
    Bytes(usize),
}

enum Fault {
    Pattern(&'static str),
    Stopped,
    NoMemory,
}

struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Length); CAPTURES_MAX],
    level: usize,
    depth: u32,
    steps: u32,
    /// Reports work to the state. False: the script must end.
    spend: &'a dyn Fn(u32) -> bool,
}

impl Drop for Matcher<'_> {
    /// Reports the remaining steps: many short searches take as long as a long one.
    fn drop(&mut self) {
        let _ = (self.spend)(self.steps / STEPS_PER_TICK);
    }
}

type Found = Result<Option<usize>, Fault>;

impl<'a> Matcher<'a> {
    fn new(text: &'a [u8], pattern: &'a [u8], spend: &'a dyn Fn(u32) -> bool) -> Matcher<'a> {
        let pattern = &pattern[..memchr::memchr(0, pattern).unwrap_or(pattern.len())];
        let captures = [(0, Length::Open); CAPTURES_MAX];
        Matcher { text, pattern, captures, level: 0, depth: 0, steps: 0, spend }
    }

    /// The byte of the pattern at `p`; 0 behind its end.
    fn pat(&self, p: usize) -> u8 {
        self.pattern.get(p).copied().unwrap_or(0)
    }

    #[inline]
    fn step(&mut self, n: usize) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(n.min(u32::MAX as usize) as u32);
        if self.steps < STEPS {
            return Ok(());
        }
        let steps = std::mem::take(&mut self.steps);
        if (self.spend)(steps / STEPS_PER_TICK) { Ok(()) } else { Err(Fault::Stopped) }
    }

    /// Steps for a look at the class between `p` and `end`: a set may be searched whole.
    fn cost(&self, p: usize, end: usize) -> usize {
        if self.pattern[p] == b'[' { end - p } else { 1 }
    }

    /// Starts a match at `at`. Returns where it ends.
    fn start(&mut self, at: usize, p: usize) -> Found {
        self.level = 0;
        self.depth = 0;
        self.run(at, p)
    }

    fn run(&mut self, s: usize, p: usize) -> Found {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Fault::Pattern("pattern too complex"));
        }
        let found = self.run_here(s, p);
        self.depth -= 1;
        found
    }

    fn run_here(&mut self, mut s: usize, mut p: usize) -> Found {
        loop {
            self.step(1)?;
            if p >= self.pattern.len() {
                return Ok(Some(s));
            }
            match (self.pattern[p], self.pat(p + 1)) {
                (b'(', b')') => return self.open_capture(s, p + 2, Length::Position),
                (b'(', _) => return self.open_capture(s, p + 1, Length::Open),
                (b')', _) => return self.close_capture(s, p + 1),
                (b'%', b'b') => match self.balance(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', b'f') => match self.frontier(s, p + 2)? {
                    Some(next) => p = next,
                    None => return Ok(None),
                },
                (b'%', digit @ b'0'..=b'9') => match self.back_reference(s, digit)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                (b'$', _) if p + 1 == self.pattern.len() => return Ok((s == self.text.len()).then_some(s)),
                _ => {
                    let end = self.class_end(p)?;
                    self.step(2 * self.cost(p, end))?;
                    let matches = self.single(s, p, end);
                    match self.pat(end) {
                        b'?' => {
                            if matches && let Some(found) = self.run(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        b'*' => return self.longest(s, p, end),
                        b'+' if matches => return self.longest(s + 1, p, end),
                        b'+' => return Ok(None),
                        b'-' => return self.shortest(s, p, end),
                        _ if matches => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn longest(&mut self, s: usize, p: usize, end: usize) -> Found {
        let (cost, mut count) = (self.cost(p, end), 0);
        loop {
            let most = count + (STEPS as usize / cost).max(1);
            let before = count;
            while count < most && self.single(s + count, p, end) {
                count += 1;
            }
            self.step((count - before + 1) * cost)?;
            if count < most {
                break;
            }
        }
        loop {
            if let Some(found) = self.run(s + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn shortest(&mut self, mut s: usize, p: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            self.step(self.cost(p, end))?;
            if !self.single(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open_capture(&mut self, s: usize, p: usize, length: Length) -> Found {
        if self.level >= CAPTURES_MAX {
            return Err(Fault::Pattern("too many captures"));
        }
        self.captures[self.level] = (s, length);
        self.level += 1;
        let found = self.run(s, p)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close_capture(&mut self, s: usize, p: usize) -> Found {
        let open = self.captures[..self.level].iter().rposition(|c| matches!(c.1, Length::Open));
        let Some(open) = open else {
            return Err(Fault::Pattern("invalid pattern capture"));
        };
        self.captures[open].1 = Length::Bytes(s - self.captures[open].0);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[open].1 = Length::Open;
        }
        Ok(found)
    }

    /// Matches `%bxy`.
    fn balance(&mut self, s: usize, p: usize) -> Found {
        let (open, close) = (self.pat(p), self.pat(p + 1));
        if open == 0 || close == 0 {
            return Err(Fault::Pattern("unbalanced pattern"));
        }
        if self.text.get(s) != Some(&open) {
            return Ok(None);
        }
        let (text, mut depth, mut from) = (self.text, 1, s + 1);
        while from < text.len() {
            let piece = &text[from..text.len().min(from + STEPS as usize)];
            self.step(piece.len())?;
            for (i, &c) in piece.iter().enumerate() {
                if c == close {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(Some(from + i + 1));
                    }
                } else if c == open {
                    depth += 1;
                }
            }
            from += piece.len();
        }
        Ok(None)
    }

    /// Matches `%f[set]`. Returns where the pattern goes on, if the set begins to match at `s`.
    fn frontier(&mut self, s: usize, p: usize) -> Found {
        if self.pat(p) != b'[' {
            return Err(Fault::Pattern("missing '[' after '%f' in pattern"));
        }
        let end = self.class_end(p)?;
        self.step(3 * (end - p))?;
        let before = if s == 0 { 0 } else { self.text[s - 1] };
        let here = self.text.get(s).copied().unwrap_or(0);
        Ok((!self.in_set(before, p, end - 1) && self.in_set(here, p, end - 1)).then_some(end))
    }

    fn back_reference(&mut self, s: usize, digit: u8) -> Found {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let (start, len) = match self.captures[..self.level].get(index) {
            None | Some((_, Length::Open)) => return Err(Fault::Pattern("invalid capture index")),
            Some((_, Length::Position)) => return Ok(None),
            Some(&(start, Length::Bytes(len))) => (start, len),
        };
        self.step(len)?;
        Ok(self.text[s..].starts_with(&self.text[start..start + len]).then_some(s + len))
    }

    /// The end of the single-character class at `p`.
    fn class_end(&self, mut p: usize) -> Result<usize, Fault> {
        let first = self.pat(p);
        p += 1;
        match first {
            b'%' if p >= self.pattern.len() => Err(Fault::Pattern("malformed pattern (ends with '%')")),
            b'%' => Ok(p + 1),
            b'[' => {
                if self.pat(p) == b'^' {
                    p += 1;
                }
                loop {
                    if p >= self.pattern.len() {
                        return Err(Fault::Pattern("malformed pattern (missing ']')"));
                    }
                    let c = self.pattern[p];
                    p += 1;
                    if c == b'%' && p < self.pattern.len() {
                        p += 1;
                    }
                    if self.pat(p) == b']' {
                        return Ok(p + 1);
                    }
                }
            }
            _ => Ok(p),
        }
    }

    #[inline]
    fn single(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&c) = self.text.get(s) else {
            return false;
        };
        match self.pattern[p] {
            b'.' => true,
            b'%' => in_class(c, self.pat(p + 1)),
            b'[' => self.in_set(c, p, end - 1),
            plain => plain == c,
        }
    }

    /// Whether `c` is in the set that starts at `p` and has its closing bracket at `end`.
    fn in_set(&self, c: u8, mut p: usize, end: usize) -> bool {
        let negated = self.pat(p + 1) == b'^';
        p += 1 + usize::from(negated);
        while p < end {
            let item = self.pattern[p];
            if item == b'%' {
                p += 1;
                if in_class(c, self.pat(p)) {
                    return !negated;
                }
            } else if self.pat(p + 1) == b'-' && p + 2 < end {
                if (item..=self.pattern[p + 2]).contains(&c) {
                    return !negated;
                }
                p += 2;
            } else if item == c {
                return !negated;
            }
            p += 1;
        }
        negated
    }

    /// Capture `index` of the match from `start` to `end`: the whole match if the pattern has no captures.
    fn capture(&self, index: usize, start: usize, end: usize) -> Result<Capture<'a>, Fault> {
        if index >= self.level {
            return match index {
                0 => Ok(Capture::Text(&self.text[start..end])),
                _ => Err(Fault::Pattern("invalid capture index")),
            };
        }
        match self.captures[index] {
            (_, Length::Open) => Err(Fault::Pattern("unfinished capture")),
            (at, Length::Position) => Ok(Capture::Position(at + 1)),
            (at, Length::Bytes(len)) => Ok(Capture::Text(&self.text[at..at + len])),
        }
    }
}

enum Capture<'a> {
    Text(&'a [u8]),
    Position(usize),
}

fn in_class(c: u8, class: u8) -> bool {
    let inside = match class.to_ascii_lowercase() {
        b'a' => c.is_ascii_alphabetic(),
        b'c' => c.is_ascii_control(),
        b'd' => c.is_ascii_digit(),
        b'l' => c.is_ascii_lowercase(),
        b'p' => c.is_ascii_punctuation(),
        b's' => matches!(c, b' ' | 9..=13),
        b'u' => c.is_ascii_uppercase(),
        b'w' => c.is_ascii_alphanumeric(),
        b'x' => c.is_ascii_hexdigit(),
        b'z' => c == 0,
        _ => return class == c,
    };
    inside != class.is_ascii_uppercase()
}

// ---- from and to Lua

fn raise_fault<T>(s: &mut State<'_>, fault: Fault) -> Result<T, Raise> {
    match fault {
        Fault::Pattern(text) => s.raise_here(text),
        Fault::Stopped => s.raise("script stopped"),
        Fault::NoMemory => s.raise_short(),
    }
}

/// A match, independent of the strings it was found in.
struct Hit {
    start: usize,
    end: usize,
    captures: smallvec::SmallVec<[Span; 4]>,
}

enum Span {
    Text(usize, usize),
    Position(usize),
}

impl Hit {
    /// `whole`: without captures, the match itself counts as one.
    fn new(matcher: &Matcher<'_>, start: usize, end: usize, whole: bool) -> Result<Hit, Fault> {
        let count = if matcher.level == 0 { usize::from(whole) } else { matcher.level };
        let base = matcher.text.as_ptr() as usize;
        let captures = (0..count)
            .map(|i| {
                Ok(match matcher.capture(i, start, end)? {
                    Capture::Position(at) => Span::Position(at),
                    Capture::Text(text) => {
                        let from = text.as_ptr() as usize - base;
                        Span::Text(from, from + text.len())
                    }
                })
            })
            .collect::<Result<_, Fault>>()?;
        Ok(Hit { start, end, captures })
    }
}

fn find(s: &mut State<'_>) -> Outcome {
    find_or_match(s, true)
}

fn match_(s: &mut State<'_>) -> Outcome {
    find_or_match(s, false)
}

fn find_or_match(s: &mut State<'_>, is_find: bool) -> Outcome {
    s.arg_text(1)?;
    s.arg_text(2)?;
    let len = s.len(1);
    let init = if s.is_none_or_nil(3) { 1 } else { s.arg_int(3)? };
    let init = if init < 0 { init.saturating_add(len as i64 + 1) } else { init };
    let init = (init.saturating_sub(1).max(0) as usize).min(len);
    let plain = is_find && s.bool(4);
    s.tick_bytes(len - init)?;
    s.tick_bytes(s.len(2))?;
    s.heavy(s.len(2))?;
    let found = search(s, init, is_find, plain);
    let hit = match found {
        Ok(Some(hit)) => hit,
        Ok(None) => {
            s.push_nil();
            return ONE;
        }
        Err(fault) => return raise_fault(s, fault),
    };
    if !is_find {
        return push_captures(s, &hit);
    }
    s.push_number(hit.start as f64 + 1.0);
    s.push_number(hit.end as f64);
    Ok(push_captures(s, &hit)? + 2)
}

fn search(s: &State<'_>, init: usize, is_find: bool, plain: bool) -> Result<Option<Hit>, Fault> {
    let text = s.bytes(1).unwrap_or_default();
    let pattern = s.bytes(2).unwrap_or_default();
    let special = pattern.iter().take_while(|&&c| c != 0).any(|c| b"^$*+?.([%-".contains(c));
    if is_find && (plain || !special) {
        let found = find_plain(s, text, pattern, init)?;
        return Ok(found.map(|start| Hit {
            start,
            end: start + pattern.len(),
            captures: Default::default(),
        }));
    }
    let spend = |ticks| s.spend(ticks);
    let mut matcher = Matcher::new(text, pattern, &spend);
    let anchored = matcher.pat(0) == b'^';
    for start in init..=text.len() {
        if let Some(end) = matcher.start(start, usize::from(anchored))? {
            return Hit::new(&matcher, start, end, !is_find).map(Some);
        }
        if anchored {
            break;
        }
    }
    Ok(None)
}

/// The first place of `pattern` from `init` on. Searches in pieces that overlap by the length of the pattern
/// and are not shorter: O(text + pattern).
fn find_plain(s: &State<'_>, text: &[u8], pattern: &[u8], init: usize) -> Result<Option<usize>, Fault> {
    if text.len() - init < PIECE {
        return Ok(memchr::memmem::find(&text[init..], pattern).map(|at| init + at));
    }
    let finder = memchr::memmem::Finder::new(pattern);
    let mut from = init;
    loop {
        let end = text.len().min(from + PIECE.max(pattern.len()) + pattern.len());
        if let Some(at) = finder.find(&text[from..end]) {
            return Ok(Some(from + at));
        }
        if end == text.len() {
            return Ok(None);
        }
        from = end + 1 - pattern.len().max(1);
        if !s.may_go_on() {
            return Err(Fault::Stopped);
        }
    }
}

fn gmatch(s: &mut State<'_>) -> Outcome {
    s.arg_text(1)?;
    s.arg_text(2)?;
    s.set_top(2);
    s.push_number(0.0);
    s.push_native(native(next_match), 3);
    ONE
}

/// The iterator of `gmatch`. Upvalues: text, pattern, where to go on.
fn next_match(s: &mut State<'_>) -> Outcome {
    s.set_top(0);
    for n in 1..=3 {
        s.push_upvalue(n);
    }
    let from = s.number(3) as usize;
    s.tick_bytes(s.len(2))?;
    let found = {
        let spend = |ticks| s.spend(ticks);
        let text = s.bytes(1).unwrap_or_default();
        let mut matcher = Matcher::new(text, s.bytes(2).unwrap_or_default(), &spend);
        first_hit(&mut matcher, from)
    };
    match found {
        Err(fault) => raise_fault(s, fault),
        Ok(None) => Ok(0),
        Ok(Some(hit)) => {
            let next = if hit.end == hit.start { hit.end + 1 } else { hit.end };
            s.push_number(next as f64);
            s.set_upvalue(3);
            push_captures(s, &hit)
        }
    }
}

fn first_hit(matcher: &mut Matcher<'_>, from: usize) -> Result<Option<Hit>, Fault> {
    for start in from..=matcher.text.len() {
        if let Some(end) = matcher.start(start, 0)? {
            return Hit::new(matcher, start, end, true).map(Some);
        }
    }
    Ok(None)
}

/// Pushes the captures of a match in the string in slot 1.
fn push_captures(s: &mut State<'_>, hit: &Hit) -> Outcome {
    if !s.reserve(hit.captures.len() as i32 + 2) {
        return s.raise_here("stack overflow (too many captures)");
    }
    let bytes = |capture: &Span| if let Span::Text(from, to) = capture { to - from } else { 0 };
    let bytes = hit.captures.iter().map(bytes).sum();
    s.room(bytes)?;
    s.tick_bytes(bytes)?;
    for capture in &hit.captures {
        match *capture {
            Span::Position(at) => s.push_number(at as f64),
            Span::Text(from, to) => s.push_part(1, from, to),
        }
    }
    Ok(hit.captures.len())
}

// ---- gsub

// Slots of a gsub: 1–4 hold its arguments. The others hold numbers that survive calls of the replacement
// function.
const REPLACEMENT: i32 = 3;
const COUNT: i32 = 5;
/// Where this gsub's output starts in the session's buffer, behind that of outer gsubs; and where it ended
/// when the replacement function was called.
const BASE: i32 = 6;
const OUTPUT: i32 = 7;
/// The match that the replacement function was called for.
const START: i32 = 8;
const END: i32 = 9;
const RESULT: i32 = 10;

/// Runs up to a call of the replacement function, or to the end. Upvalue: a function that indexes tables.
///
/// The output is in the session's buffer; inner gsubs use its end. An error of the replacement function
/// leaves the output there. The function that catches the error cuts it off.
fn gsub(s: &mut State<'_>, called: bool) -> Result<Step, Raise> {
    if !called {
        prepare(s)?;
    }
    let mut out = s.buffer(|session| &session.pattern);
    let step = go_on(s, called, &mut out);
    if !matches!(step, Ok(Step::Call(_))) {
        out.truncate(s.number(BASE) as usize);
    }
    if !out.is_empty() {
        out.leave();
    }
    step
}

fn prepare(s: &mut State<'_>) -> Result<(), Raise> {
    s.arg_text(1)?;
    s.arg_text(2)?;
    let kind = s.type_of(REPLACEMENT);
    if !s.is_none_or_nil(4) {
        s.arg_int(4)?;
    }
    match kind {
        Type::Number => s.arg_text(REPLACEMENT)?,
        Type::String | Type::Function | Type::Table => {}
        _ => return s.raise_arg(REPLACEMENT, "string/function/table expected"),
    }
    // The output is about as long, so room is made before garbage piles up.
    s.room(2 * s.len(1))?;
    s.set_top(4);
    let base = s.session().pattern.len() as f64;
    for number in [0.0, base, base, 0.0, 0.0] {
        s.push_number(number);
    }
    Ok(())
}

fn go_on(s: &mut State<'_>, mut called: bool, out: &mut Buffer<'_>) -> Result<Step, Raise> {
    s.check_memory()?;
    s.tick_bytes(s.len(2))?;
    loop {
        let answered = called.then(|| (s.number(START) as usize, s.number(END) as usize));
        if let Some((start, end)) = answered {
            out.truncate(s.number(OUTPUT) as usize);
            add_result(s, start, end, out)?;
            s.set_top(RESULT - 1);
        }
        let (count, hit) = match run(s, answered, out) {
            Ok(found) => found,
            Err(fault) => return raise_fault(s, fault),
        };
        let Some(hit) = hit else {
            s.push_long(&out[s.number(BASE) as usize..])?;
            s.push_number(count);
            return Ok(Step::Return(2));
        };
        for (slot, number) in
            [(COUNT, count), (OUTPUT, out.len() as f64), (START, hit.start as f64), (END, hit.end as f64)]
        {
            s.push_number(number);
            s.replace(slot);
        }
        if let Some(args) = push_call(s, &hit)? {
            return Ok(Step::Call(args));
        }
        called = true;
    }
}

/// Appends output up to the next match whose replacement must be asked for. Returns the number of matches,
/// and that match.
fn run(
    s: &State<'_>,
    answered: Option<(usize, usize)>,
    out: &mut Buffer<'_>,
) -> Result<(f64, Option<Hit>), Fault> {
    let spend = |ticks| s.spend(ticks);
    let text = s.bytes(1).unwrap_or_default();
    let replacement = s.bytes(REPLACEMENT);
    let most = if s.is_none_or_nil(4) { f64::INFINITY } else { f64::from(s.number(4) as i64 as i32) };
    let mut count = s.number(COUNT);
    let mut matcher = Matcher::new(text, s.bytes(2).unwrap_or_default(), &spend);
    let anchored = matcher.pat(0) == b'^';
    let mut at = 0;
    let mut last = answered.map(|(start, end)| (start, Some(end)));
    loop {
        if let Some((start, end)) = last {
            at = match end {
                Some(end) if end > start => end,
                _ if start < text.len() => {
                    append(&mut matcher, &text[start..start + 1], out)?;
                    start + 1
                }
                _ => {
                    at = start;
                    break;
                }
            };
            if anchored {
                break;
            }
        }
        if count >= most {
            break;
        }
        let end = matcher.start(at, usize::from(anchored))?;
        if let Some(end) = end {
            count += 1.0;
            match replacement {
                Some(replacement) => expand(&mut matcher, replacement, at, end, out)?,
                None => return Ok((count, Some(Hit::new(&matcher, at, end, true)?))),
            }
        }
        last = Some((at, end));
    }
    append(&mut matcher, &text[at.min(text.len())..], out)?;
    Ok((count, None))
}

/// Bytes that are copied in the time of a step.
const COPIED: usize = 16;

#[inline]
fn append(matcher: &mut Matcher<'_>, bytes: &[u8], out: &mut Buffer<'_>) -> Result<(), Fault> {
    matcher.step(1 + bytes.len() / COPIED)?;
    if !out.try_fit(bytes.len()) {
        return Err(Fault::NoMemory);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends a replacement string with its `%0` to `%9` filled in.
fn expand(
    matcher: &mut Matcher<'_>,
    replacement: &[u8],
    start: usize,
    end: usize,
    out: &mut Buffer<'_>,
) -> Result<(), Fault> {
    let mut rest = replacement;
    while let Some(percent) = memchr::memchr(b'%', rest) {
        append(matcher, &rest[..percent], out)?;
        let c = rest.get(percent + 1).copied().unwrap_or(0);
        let text = matcher.text;
        match c {
            b'0' => append(matcher, &text[start..end], out)?,
            b'1'..=b'9' => match matcher.capture(usize::from(c - b'1'), start, end)? {
                Capture::Text(text) => append(matcher, text, out)?,
                Capture::Position(at) => append(matcher, at.to_string().as_bytes(), out)?,
            },
            other => append(matcher, &[other], out)?,
        }
        rest = rest.get(percent + 2..).unwrap_or_default();
    }
    append(matcher, rest, out)
}

/// Pushes the function that finds the replacement of a match, with its arguments, and returns their number.
/// `None`: the result is known already, and pushed.
fn push_call(s: &mut State<'_>, hit: &Hit) -> Result<Option<usize>, Raise> {
    if s.type_of(REPLACEMENT) == Type::Function {
        s.push_value(REPLACEMENT);
        return push_captures(s, hit).map(Some);
    }
    let indirect = s.push_metatable(REPLACEMENT);
    if indirect {
        s.pop(1);
        s.push_upvalue(1);
        s.push_value(REPLACEMENT);
    }
    match hit.captures.first() {
        Some(&Span::Position(at)) => s.push_number(at as f64),
        Some(&Span::Text(from, to)) => s.push_part(1, from, to),
        None => s.push_nil(),
    }
    if indirect {
        return Ok(Some(2));
    }
    s.raw_get(REPLACEMENT);
    Ok(None)
}

fn add_result(s: &mut State<'_>, start: usize, end: usize, out: &mut Buffer<'_>) -> Result<(), Raise> {
    let bytes = if !s.bool(RESULT) {
        end - start
    } else if s.text(RESULT).is_some() {
        s.len(RESULT)
    } else {
        let kind = s.type_of(RESULT).name();
        return s.raise_here(format!("invalid replacement value (a {kind})"));
    };
    out.fit(s, bytes)?;
    s.tick_bytes(bytes)?;
    out.extend_from_slice(match s.bytes(RESULT) {
        Some(text) => text,
        None => &s.bytes(1).unwrap_or_default()[start..end],
    });
    Ok(())
}
