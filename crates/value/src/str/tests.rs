use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Set(usize, u8),
    Append(usize, u8),
    Write(usize, usize, u8),
    Bit(u64, bool),
    Truncate(usize),
    Snapshot,
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![0usize..60, 0usize..10_000, 0usize..60_000];
    prop_oneof![
        1 => (size.clone(), any::<u8>()).prop_map(|(n, b)| Op::Set(n, b)),
        4 => (size.clone(), 0u8..3).prop_map(|(n, b)| Op::Append(n, b)),
        4 => (0usize..300_000, size.clone(), any::<u8>()).prop_map(|(at, n, b)| Op::Write(at, n, b)),
        4 => (0usize..600_000, size, any::<u8>()).prop_map(|(at, n, b)| Op::Write(at % 20_000, n, b)),
        4 => (0u64..4_000_000, any::<bool>()).prop_map(|(at, on)| Op::Bit(at, on)),
        4 => (0u64..200_000, any::<bool>()).prop_map(|(at, on)| Op::Bit(at, on)),
        3 => (0usize..500_000).prop_map(Op::Truncate),
        4 => Just(Op::Snapshot),
    ]
}

fn check(string: &Str, model: &[u8]) {
    string.check_invariants();
    assert_eq!(string.len(), model.len());
    assert!(string.as_ref() == *model);
    for part in [0..model.len(), model.len() / 3..model.len() / 2, model.len() / 2..usize::MAX] {
        let mut bytes = Vec::new();
        string.as_ref().copy_to(part.clone(), &mut bytes);
        assert!(bytes == model[part.start..part.end.min(model.len())]);
    }
    if !model.is_empty() {
        assert_eq!(string.as_ref().byte(model.len() / 2), model[model.len() / 2]);
    }
    assert!(string.as_ref().to_str().as_ref() == *model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_string_behaves_like_a_vector_and_its_clones_never_change(ops in prop::collection::vec(op(), 1..40)) {
        let (mut string, mut model) = (Str::new(), Vec::<u8>::new());
        let mut old = Vec::new();
        for op in ops {
            match op {
                Op::Set(n, b) => {
                    model = vec![b; n];
                    string = Str::from_slice(&model);
                }
                Op::Append(n, b) => {
                    model.resize(model.len() + n, b);
                    string.append(&vec![b; n]);
                }
                Op::Write(at, n, b) => {
                    string.write_at(at, &vec![b; n]);
                    if n > 0 {
                        model.resize(model.len().max(at + n), 0);
                        model[at..at + n].fill(b);
                    }
                }
                Op::Bit(at, on) => {
                    let (byte, mask) = ((at / 8) as usize, 128u8 >> (at % 8));
                    model.resize(model.len().max(byte + 1), 0);
                    prop_assert_eq!(string.set_bit(at, on), model[byte] & mask != 0);
                    model[byte] = if on { model[byte] | mask } else { model[byte] & !mask };
                }
                Op::Truncate(n) => {
                    string.truncate(n);
                    model.truncate(n);
                }
                Op::Snapshot => old.push((string.clone(), model.clone())),
            }
            string.check_invariants();
        }
        old.push((string, model));
        old.iter().for_each(|(string, model)| check(string, model));
    }
}

#[test]
fn a_far_bit_costs_kilobytes() {
    let mut string = Str::new();
    assert!(!string.set_bit(4_000_000_000, true));
    assert_eq!(string.len(), 500_000_001);
    assert!(string.mem_bytes() < 10_000, "{}", string.mem_bytes());
    let clone = string.clone();
    assert!(string.set_bit(4_000_000_000, false));
    assert!(clone.as_ref().byte(500_000_000) == 128 && string.as_ref().byte(500_000_000) == 0);
    assert!(clone.as_ref().runs(0..usize::MAX).count() < 200);
    let mut zeros = Str::new();
    assert!(!zeros.set_bit(4_000_000_000, false));
    assert!(zeros.len() == 500_000_001 && zeros.mem_bytes() < 1000);
    string.truncate(10);
    assert_eq!(string.as_ref().to_vec(), [0; 10]);
}

#[test]
fn encodings_are_those_of_redis() {
    let enc = |bytes: &[u8]| Str::from_slice(bytes).encoding();
    assert_eq!(enc(b"12"), Enc::Int);
    assert_eq!(enc(b"-9223372036854775808"), Enc::Int);
    assert_eq!(enc(b"9223372036854775808"), Enc::EmbStr);
    assert_eq!((enc(b""), enc(&[b'x'; 44]), enc(&[b'x'; 45])), (Enc::EmbStr, Enc::EmbStr, Enc::Raw));
    let mut string = Str::from_slice(b"1");
    string.append(b"2");
    assert_eq!((string.encoding(), string.as_ref().as_i64()), (Enc::Raw, Some(12)));
    let mut string = Str::from_slice(b"123");
    let clone = string.clone();
    string.truncate(2);
    assert_eq!((string.encoding(), clone.encoding()), (Enc::Int, Enc::Int));
    assert!(!string.set_bit(0, false));
    assert_eq!(string.encoding(), Enc::Int, "an unchanged string is not converted here");
}
