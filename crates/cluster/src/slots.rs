//! Hash slots: which of 16,384 parts of the keyspace does a key belong to, and sets of such parts.

use resp::Args;
use std::fmt;

/// Count of slots.
pub const SLOTS: usize = 16_384;

/// The slot of a key: CRC-16 (XMODEM) of its hash tag. O(bytes)
pub fn of_key(key: &[u8]) -> u16 {
    crc16(tag(key)) % SLOTS as u16
}

/// The part of a key that decides its slot: what stands between the first `{` and the next `}`, or all of the
/// key if nothing stands there.
pub fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|b| *b == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|b| *b == b'}') {
        Some(len) if len > 0 => &rest[..len],
        _ => key,
    }
}

/// The slot of all keys that a pattern of SORT may form. None: they may be in several. O(bytes)
fn of_pattern(pattern: &[u8]) -> Option<u16> {
    let mut open = None;
    for (at, byte) in pattern.iter().enumerate() {
        match (byte, open) {
            (b'*' | b'?' | b'[' | b'\\', _) => return None,
            (b'{', None) => open = Some(at),
            (b'}', Some(from)) if at > from + 1 => return Some(of_key(&pattern[from..=at])),
            _ => {}
        }
    }
    Some(of_key(pattern))
}

/// The error of a SORT whose BY or GET may form keys of another slot than its own key's, with the words of
/// Redis 8 and Valkey 9. O(bytes)
pub fn leaves_by_pattern(args: Args<'_>) -> Option<&'static str> {
    let stays = |pattern: &[u8]| of_pattern(pattern) == Some(of_key(args.at(1)));
    let mut at = 2;
    while at < args.len() {
        let (word, left) = (args.at(at), args.len() - at - 1);
        let is = |name: &str, takes: usize| word.eq_ignore_ascii_case(name.as_bytes()) && left >= takes;
        at += match () {
            // Without a place for an element it names no key.
            () if is("by", 1) && args.at(at + 1).contains(&b'*') && !stays(args.at(at + 1)) => {
                return Some(
                    "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
                );
            }
            () if is("get", 1) && args.at(at + 1) != b"#" && !stays(args.at(at + 1)) => {
                return Some(
                    "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
                );
            }
            () if is("by", 1) || is("get", 1) || is("store", 1) => 2,
            () if is("limit", 2) => 3,
            () => 1,
        };
    }
    None
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc << 8 ^ TABLE[(crc >> 8) as usize ^ *byte as usize])
}

/// The slot of many keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joined {
    /// There are no keys.
    #[default]
    None,
    One(u16),
    Several,
}

impl Joined {
    pub fn join(&mut self, slot: u16) {
        *self = match *self {
            Joined::None => Joined::One(slot),
            Joined::One(known) if known == slot => *self,
            _ => Joined::Several,
        };
    }
}

/// A set of slots, as ascending ranges that do not touch. Both ends are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet(Vec<(u16, u16)>);

impl SlotSet {
    /// Reads `0-5460,5462`. None: it is no set.
    pub fn parse(text: &str) -> Option<SlotSet> {
        let mut set = SlotSet::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last as usize >= SLOTS || set.overlaps(first, last) {
                return None;
            }
            set.add(first, last);
        }
        Some(set)
    }

    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Count of its slots. O(ranges)
    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| (last - first) as usize + 1).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// O(log ranges)
    pub fn contains(&self, slot: u16) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < slot);
        self.0.get(at).is_some_and(|(first, _)| *first <= slot)
    }

    fn overlaps(&self, first: u16, last: u16) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < first);
        self.0.get(at).is_some_and(|(begin, _)| *begin <= last)
    }

    /// Adds a range. O(ranges)
    pub fn add(&mut self, first: u16, last: u16) {
        let (mut first, mut last) = (first, last);
        self.0.retain(|(begin, end)| {
            let touches = *begin <= last.saturating_add(1) && first <= end.saturating_add(1);
            if touches {
                (first, last) = (first.min(*begin), last.max(*end));
            }
            !touches
        });
        let at = self.0.partition_point(|(begin, _)| *begin < first);
        self.0.insert(at, (first, last));
    }

    /// Removes a range. O(ranges)
    pub fn remove(&mut self, first: u16, last: u16) {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for (begin, end) in std::mem::take(&mut self.0) {
            if begin < first {
                left.push((begin, end.min(first - 1)));
            }
            if end > last {
                left.push((begin.max(last + 1), end));
            }
        }
        self.0 = left;
    }
}

impl FromIterator<(u16, u16)> for SlotSet {
    fn from_iter<I: IntoIterator<Item = (u16, u16)>>(ranges: I) -> SlotSet {
        let mut set = SlotSet::default();
        ranges.into_iter().for_each(|(first, last)| set.add(first, last));
        set
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-16/XMODEM, and slots that Redis gives.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0), ("{a}b", 15495), ("a", 15495)]
        {
            assert_eq!(of_key(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn the_tag_is_what_stands_in_the_first_braces() {
        let cases: [(&str, &str); 8] = [
            ("{user}.name", "user"),
            ("{}.name", "{}.name"),
            ("a{b}c{d}", "b"),
            ("{{a}}", "{a"),
            ("a}b{c", "a}b{c"),
            ("{open", "{open"),
            ("{}{a}", "{}{a}"),
            ("plain", "plain"),
        ];
        for (key, expected) in cases {
            assert_eq!(tag(key.as_bytes()), expected.as_bytes(), "{key}");
        }
    }

    #[test]
    fn sets_of_slots_are_added_and_removed() {
        let mut set = SlotSet::parse("0-10,20,30-40").unwrap();
        assert_eq!((set.len(), set.contains(20), set.contains(21), set.contains(0)), (23, true, false, true));
        set.add(11, 19);
        assert_eq!(set.to_string(), "0-20,30-40");
        set.remove(5, 33);
        assert_eq!(set.to_string(), "0-4,34-40");
        set.remove(0, 0);
        set.add(16383, 16383);
        assert_eq!(set.to_string(), "1-4,34-40,16383");
        assert_eq!(SlotSet::parse(&set.to_string()), Some(set));
        for bad in ["5-3", "16384", "0-5,3", "x", "1-", "-1"] {
            assert_eq!(SlotSet::parse(bad), None, "{bad}");
        }
        assert_eq!(SlotSet::parse(""), Some(SlotSet::default()));
    }

    /// Against a plain array of flags.
    #[test]
    fn a_set_is_what_an_array_would_be() {
        let mut seed = 7_u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut set, mut flags) = (SlotSet::default(), [false; 200]);
        for _ in 0..5000 {
            let first = random(200) as u16;
            let last = (first + random(30) as u16).min(199);
            let add = random(2) == 0;
            match add {
                true => set.add(first, last),
                false => set.remove(first, last),
            }
            flags[first as usize..=last as usize].fill(add);
            let expected: Vec<u16> = (0..200).filter(|slot| flags[*slot as usize]).collect();
            assert_eq!(set.iter().collect::<Vec<_>>(), expected);
            assert!(set.ranges().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{set}");
        }
    }
}
