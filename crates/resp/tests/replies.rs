//! Replies: a written reply reads back as the same.

use proptest::prelude::*;
use resp::{Frame, FrameEnd, Reply, read_frame};

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    "[ -~]{0,20}".prop_map(String::into_bytes)
}

/// Any frame except RESP2's null array, which RESP3 cannot express.
fn frame() -> impl Strategy<Value = Frame> {
    let scalar = prop_oneof![
        line().prop_map(Frame::Simple),
        line().prop_map(Frame::Error),
        any::<i64>().prop_map(Frame::Int),
        text().prop_map(Frame::Bulk),
        Just(Frame::Null),
        any::<f64>().prop_filter("NaN differs from itself", |value| !value.is_nan()).prop_map(Frame::Double),
        any::<bool>().prop_map(Frame::Bool),
        "-?[0-9]{1,40}".prop_map(|digits| Frame::BigNumber(digits.into_bytes())),
        text().prop_map(|text| Frame::Verbatim { format: *b"txt", text }),
    ];
    scalar.prop_recursive(4, 40, 6, |inner| {
        let many = prop::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            many.clone().prop_map(Frame::Array),
            many.clone().prop_map(Frame::Set),
            many.prop_map(Frame::Push),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Frame::Map),
        ]
    })
}

/// The frame that remains after a way through RESP2.
fn flattened(frame: &Frame) -> Frame {
    let all = |frames: &[Frame]| frames.iter().map(flattened).collect();
    match frame {
        Frame::Double(value) => {
            let mut digits = Vec::new();
            stdx::num::format_f64(*value, &mut digits);
            Frame::Bulk(digits)
        }
        Frame::Bool(value) => Frame::Int(i64::from(*value)),
        Frame::BigNumber(digits) => Frame::Bulk(digits.clone()),
        Frame::Verbatim { text, .. } => Frame::Bulk(text.clone()),
        Frame::Array(frames) | Frame::Set(frames) | Frame::Push(frames) => Frame::Array(all(frames)),
        Frame::Map(pairs) => {
            Frame::Array(pairs.iter().flat_map(|(key, value)| [flattened(key), flattened(value)]).collect())
        }
        other => other.clone(),
    }
}

fn written(frame: &Frame, resp3: bool) -> Vec<u8> {
    let mut reply = Reply::new(resp3);
    frame.write(&mut reply);
    reply.take()
}

proptest! {
    #[test]
    fn frames_read_back(frame in frame(), more in text()) {
        for (resp3, expect) in [(true, frame.clone()), (false, flattened(&frame))] {
            let mut bytes = written(&frame, resp3);
            let len = bytes.len();
            bytes.extend_from_slice(&more);
            prop_assert_eq!(read_frame(&bytes), Ok(Some((expect, len))));
            prop_assert_eq!(FrameEnd::new().find(&bytes), Ok(Some(len)));
        }
    }

    #[test]
    fn a_part_of_a_frame_is_not_a_frame(frame in frame()) {
        let bytes = written(&frame, true);
        let mut end = FrameEnd::new();
        for cut in 0..bytes.len() {
            prop_assert_eq!(read_frame(&bytes[..cut]), Ok(None));
            prop_assert_eq!(end.find(&bytes[..cut]), Ok(None));
        }
        prop_assert_eq!(end.find(&bytes), Ok(Some(bytes.len())));
    }

    #[test]
    fn no_text_breaks_the_framing(text in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), any::<u8>()], 0..20)) {
        let mut reply = Reply::new(false);
        reply.error_bytes(&text);
        reply.simple_bytes(&text);
        let (first, used) = read_frame(reply.as_bytes()).unwrap().unwrap();
        prop_assert!(first.is_error());
        let (second, rest) = read_frame(&reply.as_bytes()[used..]).unwrap().unwrap();
        prop_assert!(matches!(second, Frame::Simple(shown) if shown.len() == text.len()));
        prop_assert_eq!(used + rest, reply.len());
    }
}
