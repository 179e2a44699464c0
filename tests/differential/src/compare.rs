//! Compares two replies and names the smallest differences.

use crate::step::Check;
use crate::wire::Frame;

/// Facts from earlier replies of a stream that later ones need, for each connection.
#[derive(Default)]
pub struct Memory {
    /// The checks of the commands queued since MULTI.
    queued: Option<Vec<(String, Check)>>,
    /// Our replies to the last `Probe` and the last `Sample`.
    probe: Option<Frame>,
    sample: Option<Frame>,
}

/// One difference: the command it belongs to and the smallest frames that show it.
#[derive(Clone, Debug)]
pub struct Difference {
    pub command: String,
    pub ours: String,
    pub theirs: String,
}

/// Compares the replies to one request and learns from them.
pub fn compare(
    memory: &mut Memory,
    args: &[Vec<u8>],
    text: &str,
    check: Check,
    ours: &Frame,
    theirs: &Frame,
) -> Vec<Difference> {
    let name = args.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
    let mut out = Vec::new();
    match name.as_slice() {
        b"EXEC" if memory.queued.is_some() => {
            let queued = memory.queued.take().unwrap_or_default();
            compare_exec(&queued, text, ours, theirs, &mut out);
            return out;
        }
        b"DISCARD" | b"RESET" => memory.queued = None,
        _ => {}
    }
    if let Some(queued) = &mut memory.queued
        && *theirs == Frame::Simple(b"QUEUED".to_vec())
    {
        queued.push((text.to_owned(), check));
        differ(text, Check::Exact, ours, theirs, &mut out);
        return out;
    }
    if name == b"MULTI" && !theirs.is_error() {
        memory.queued = Some(Vec::new());
    }
    match check {
        Check::Probe => {
            memory.probe = Some(ours.clone());
            memory.sample = None;
            let check = if name == b"ZRANGE" { Check::Exact } else { Check::Unordered };
            differ(text, check, ours, theirs, &mut out);
        }
        Check::Sample => {
            if let Some(why) = implausible(args, memory.probe.as_ref(), ours, theirs) {
                out.push(Difference {
                    command: text.to_owned(),
                    ours: format!("{ours} ({why})"),
                    theirs: theirs.to_string(),
                });
            }
            memory.sample = (name == b"SPOP").then(|| ours.clone());
        }
        Check::Remaining => {
            if let (Some(probe), Some(sample)) = (&memory.probe, &memory.sample)
                && probe.items().is_some()
                && !sample.is_error()
            {
                let mut have = texts(ours);
                have.extend(texts(sample));
                have.sort();
                let mut had = texts(probe);
                had.sort();
                if have != had {
                    out.push(Difference {
                        command: text.to_owned(),
                        ours: format!("{ours} (with what was taken, {sample}, not what was there)"),
                        theirs: probe.to_string(),
                    });
                }
            }
        }
        check => differ(text, check, ours, theirs, &mut out),
    }
    out
}

fn compare_exec(
    queued: &[(String, Check)],
    text: &str,
    ours: &Frame,
    theirs: &Frame,
    out: &mut Vec<Difference>,
) {
    match (ours, theirs) {
        (Frame::Array(a), Frame::Array(b)) if a.len() == b.len() && b.len() == queued.len() => {
            for ((command, check), (a, b)) in queued.iter().zip(a.iter().zip(b)) {
                differ(command, *check, a, b, out);
            }
        }
        _ => differ(text, Check::Exact, ours, theirs, out),
    }
}

/// Collects the differences between `ours` and `theirs` under `check`.
pub fn differ(text: &str, check: Check, ours: &Frame, theirs: &Frame, out: &mut Vec<Difference>) {
    if ours == theirs {
        return;
    }
    let lost = |frame: &Frame| matches!(frame, Frame::Gone(_));
    let same = match check {
        _ if lost(ours) || lost(theirs) => false,
        Check::Ignore => true,
        _ if ours.is_error() || theirs.is_error() => false,
        Check::Kind => ours.kind() == theirs.kind(),
        Check::Unordered | Check::Probe => sorted(ours) == sorted(theirs),
        Check::Leaves => leaves(ours) == leaves(theirs),
        Check::Pairs => pairs(ours) == pairs(theirs),
        Check::Near(_) | Check::Exact => return descend(text, check, ours, theirs, out),
        Check::Sample | Check::Remaining => ours.kind() == theirs.kind(),
    };
    if !same {
        out.push(Difference { command: text.to_owned(), ours: ours.to_string(), theirs: theirs.to_string() });
    }
}

/// Walks two frames of the same shape down to the leaves that differ.
fn descend(text: &str, check: Check, ours: &Frame, theirs: &Frame, out: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Frame::Array(a), Frame::Array(b)) | (Frame::Push(a), Frame::Push(b)) if a.len() == b.len() => {
            a.iter().zip(b).for_each(|(a, b)| descend(text, check, a, b, out));
        }
        (Frame::Int(a), Frame::Int(b)) if near(check, *a, *b) => {}
        (Frame::Bulk(a), Frame::Bulk(b)) if differ_in_cached_count(a, b) => out.push(Difference {
            command: text.to_owned(),
            ours: "<stale count>".to_owned(),
            theirs: "<count>".to_owned(),
        }),
        (Frame::Bulk(a), Frame::Bulk(b)) if a != b && is_damaged_sketch(a) && b.starts_with(b"HYLL") => out
            .push(Difference {
                command: text.to_owned(),
                ours: "<damaged sketch>".to_owned(),
                theirs: "<sketch>".to_owned(),
            }),
        _ if ours.kind() == theirs.kind() && canonical(ours) == canonical(theirs) => {}
        _ => out.push(Difference {
            command: text.to_owned(),
            ours: ours.to_string(),
            theirs: theirs.to_string(),
        }),
    }
}

/// Whether two HyperLogLog strings are the same but for the bytes 8 to 15, which keep the last PFCOUNT; ours
/// says by the top bit that it keeps none.
fn differ_in_cached_count(ours: &[u8], theirs: &[u8]) -> bool {
    let parts = |text: &[u8]| Some((text.get(..8)?.to_vec(), text.get(16..)?.to_vec()));
    let same = parts(ours).is_some_and(|parts_of_ours| Some(parts_of_ours) == parts(theirs));
    same && ours.starts_with(b"HYLL") && ours[15] & 0x80 != 0
}

/// Whether a sparse HyperLogLog string has more or fewer registers than 16,384, as after an APPEND. Ours is not
/// added to.
fn is_damaged_sketch(text: &[u8]) -> bool {
    let Some(body) = text.get(16..).filter(|_| text.starts_with(b"HYLL\x01")) else { return false };
    let (mut registers, mut bytes) = (0, body.iter());
    while let Some(byte) = bytes.next() {
        registers += match byte >> 6 {
            0 => usize::from(byte & 0x3f) + 1,
            1 => match bytes.next() {
                Some(low) => (usize::from(byte & 0x3f) << 8 | usize::from(*low)) + 1,
                None => return true,
            },
            _ => usize::from(byte & 3) + 1,
        };
    }
    registers != 16_384
}

fn near(check: Check, a: i64, b: i64) -> bool {
    match check {
        Check::Near(most) if a >= 0 && b >= 0 => a.abs_diff(b) <= most as u64,
        _ => a == b,
    }
}

/// Sorts RESP3 sets and maps, which have no order at any depth.
fn canonical(frame: &Frame) -> Frame {
    match frame {
        Frame::Array(items) => Frame::Array(items.iter().map(canonical).collect()),
        Frame::Push(items) => Frame::Push(items.iter().map(canonical).collect()),
        Frame::Set(items) => {
            let mut items: Vec<Frame> = items.iter().map(canonical).collect();
            items.sort();
            Frame::Set(items)
        }
        Frame::Map(pairs) => {
            let mut pairs: Vec<_> = pairs.iter().map(|(k, v)| (canonical(k), canonical(v))).collect();
            pairs.sort();
            Frame::Map(pairs)
        }
        leaf => leaf.clone(),
    }
}

fn sorted(frame: &Frame) -> Frame {
    match canonical(frame) {
        Frame::Array(mut items) => {
            items.sort();
            Frame::Array(items)
        }
        other => other,
    }
}

fn pairs(frame: &Frame) -> Frame {
    match canonical(frame) {
        Frame::Array(items) if items.len() % 2 == 0 => {
            let mut pairs: Vec<Frame> = items.chunks(2).map(|pair| Frame::Array(pair.to_vec())).collect();
            pairs.sort();
            Frame::Array(pairs)
        }
        other => other,
    }
}

fn leaves(frame: &Frame) -> Vec<&Frame> {
    let mut out = Vec::new();
    frame.leaves(&mut out);
    out.sort();
    out
}

fn texts(frame: &Frame) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    frame.leaves(&mut out);
    out.iter().filter_map(|leaf| leaf.text()).map(<[u8]>::to_vec).collect()
}

/// The reason why `ours` cannot be the answer of a random command that the oracle answered with `theirs`, if
/// there is one.
fn implausible(
    args: &[Vec<u8>],
    probe: Option<&Frame>,
    ours: &Frame,
    theirs: &Frame,
) -> Option<&'static str> {
    if ours == theirs {
        return None;
    }
    if ours.is_error() || theirs.is_error() || ours.is_null() || theirs.is_null() {
        return Some("differs");
    }
    if ours.kind() != theirs.kind() {
        return Some("another type of reply");
    }
    let option = |name: &[u8]| args.iter().any(|arg| arg.eq_ignore_ascii_case(name));
    let paired = option(b"WITHSCORES") || option(b"WITHVALUES");
    let (ours, theirs) = (texts(ours), texts(theirs));
    if ours.len() != theirs.len() {
        return Some("another number of elements");
    }
    // The probe of a hash or sorted set holds pairs, that of a set or keyspace single elements.
    let kind = args[0].to_ascii_uppercase();
    let probe_step = if matches!(kind[0], b'H' | b'Z') { 2 } else { 1 };
    let step = if paired { 2 } else { 1 };
    let probe = texts(probe?);
    let known: Vec<&[Vec<u8>]> = probe.chunks(probe_step).map(|pair| &pair[..step.min(pair.len())]).collect();
    let drawn: Vec<&[Vec<u8>]> = ours.chunks(step).collect();
    if drawn.iter().any(|element| !known.contains(element)) {
        return Some("an element that is not there");
    }
    let negative = args.get(2).is_some_and(|count| count.starts_with(b"-"));
    let mut distinct = drawn.clone();
    distinct.sort();
    distinct.dedup();
    if !negative && distinct.len() != drawn.len() {
        return Some("an element twice");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sketches_may_differ_in_the_kept_count_alone() {
        let sketch = |count: [u8; 8], registers: &[u8]| [&b"HYLL\x01\0\0\0"[..], &count, registers].concat();
        let stale = [0, 0, 0, 0, 0, 0, 0, 0x80];
        let fresh = [3, 0, 0, 0, 0, 0, 0, 0];
        let told = |ours: Vec<u8>, theirs: Vec<u8>| {
            let mut out = Vec::new();
            differ("GET p1", Check::Exact, &Frame::Bulk(ours), &Frame::Bulk(theirs), &mut out);
            out.into_iter().map(|difference| difference.ours).collect::<Vec<_>>()
        };
        // All registers are zero, and something behind them.
        let (whole, damaged) = (&b"\x7f\xff"[..], &b"\x7f\xffx"[..]);
        assert_eq!(told(sketch(stale, damaged), sketch(stale, b"other")), ["<damaged sketch>"]);
        assert_ne!(told(sketch(stale, whole), sketch(stale, b"other")), ["<damaged sketch>"]);
        assert_eq!(told(sketch(stale, b"ab"), sketch(stale, b"ab")), Vec::<String>::new());
        assert_eq!(told(sketch(stale, b"ab"), sketch(fresh, b"ab")), ["<stale count>"]);
        for (ours, theirs) in [
            (sketch(stale, whole), sketch(fresh, b"ac")),
            (sketch(stale, whole), sketch(fresh, b"abc")),
            (sketch(fresh, b"ab"), sketch(stale, b"ab")),
            (sketch(stale, b"ab")[..15].to_vec(), sketch(fresh, b"ab")[..15].to_vec()),
            (sketch(stale, b"ab")[1..].to_vec(), sketch(fresh, b"ab")[1..].to_vec()),
        ] {
            assert_ne!(told(ours, theirs), ["<stale count>"]);
        }
    }
}
