//! Checks that must hold for any bytes. `tests/hostile.rs` and `fuzz/` call them.

use resp::{
    Batch, Frame, FrameEnd, Limits, OwnedArgs, Parsed, Parser, ProtocolError, Reply, Stop, read_frame,
};

/// The contents of a stream: its commands without the empty ones, and how it ends.
#[derive(Debug, PartialEq)]
pub struct Said {
    pub commands: Vec<OwnedArgs>,
    pub error: Option<ProtocolError>,
    /// Bytes of whole commands.
    pub used: usize,
}

/// Feeds `stream` to the parser in pieces that end at `cuts`, as a connection would.
pub fn said(mut parser: Parser, stream: &[u8], cuts: impl IntoIterator<Item = usize>) -> Said {
    let mut said = Said { commands: Vec::new(), error: None, used: 0 };
    for end in cuts.into_iter().chain([stream.len()]) {
        loop {
            let buf = &stream[said.used..end];
            match parser.parse(buf) {
                Ok(Parsed::Command { used }) => {
                    assert!(!parser.args(buf).is_empty(), "a command has a name");
                    said.commands.push(parser.args(buf).to_owned());
                    said.used += used;
                }
                Ok(Parsed::Empty { used }) => said.used += used,
                Ok(Parsed::More { need }) => {
                    assert!(need > 0);
                    break;
                }
                Err(error) => {
                    assert_eq!(parser.parse(buf), Err(error), "an error stays");
                    said.error = Some(error);
                    return said;
                }
            }
        }
    }
    said
}

/// Queries: cuts change nothing, batches hold the same commands, and an encoded command reads as the same
/// one. The first two bytes choose limits and cuts.
#[allow(dead_code)]
pub fn query(data: &[u8]) {
    let [first, second, stream @ ..] = data else { return };
    let parser = || {
        let mut parser = Parser::new(match first & 1 {
            0 => Limits::default(),
            _ => Limits { words_max: 8, bulk_bytes_max: 64 },
        });
        parser.set_authenticated(first & 2 == 0);
        parser
    };
    let whole = said(parser(), stream, []);
    let step = 1 + usize::from(*second);
    assert_eq!(said(parser(), stream, (step..stream.len()).step_by(step)), whole, "cut every {step} bytes");

    let (commands, stop) = batches(parser(), stream, 1 + usize::from(first >> 4));
    assert_eq!(commands, whole.commands);
    assert_eq!(if let Stop::Error(error) = stop { Some(error) } else { None }, whole.error);

    for command in &whole.commands {
        let mut reply = Reply::new(false);
        reply.array(command.len());
        command.args().iter().for_each(|word| reply.bulk(word));
        let again = said(Parser::default(), reply.as_bytes(), []);
        assert_eq!((&again.commands[..], again.used), (std::slice::from_ref(command), reply.len()));
    }
    if let Some(error) = whole.error {
        let mut reply = Reply::new(false);
        error.write(&mut reply);
        assert!(
            matches!(read_frame(reply.as_bytes()), Ok(Some((Frame::Error(_), used))) if used == reply.len())
        );
    }
}

/// All commands of a stream, `max` at a time, and the reason for the end.
pub fn batches(mut parser: Parser, stream: &[u8], max: usize) -> (Vec<OwnedArgs>, Stop) {
    let (mut batch, mut commands, mut pos) = (Batch::new(), Vec::new(), 0);
    loop {
        let buf = &stream[pos..];
        let filled = batch.fill(&mut parser, buf, max);
        assert!(batch.len() <= max);
        commands.extend(batch.to_owned(buf));
        pos += filled.used;
        if filled.stop != Stop::Full {
            return (commands, filled.stop);
        }
    }
}

/// Replies: a reply consists of bytes that were there, both readers agree on its end, and writing it twice
/// gives the same bytes.
#[allow(dead_code)]
pub fn frame(data: &[u8]) {
    let end = FrameEnd::new().find(data);
    let mut slowly = FrameEnd::new();
    let slow_end =
        (0..=data.len().min(4096)).map(|len| slowly.find(&data[..len])).find(|end| !matches!(end, Ok(None)));
    if data.len() <= 4096 {
        assert_eq!(slow_end.unwrap_or(Ok(None)), end, "found byte by byte");
    }
    match read_frame(data) {
        Ok(Some((frame, used))) => {
            assert_eq!(end, Ok(Some(used)));
            assert_eq!(read_frame(&data[..used - 1]), Ok(None));
            for resp3 in [false, true] {
                written_twice(&frame, resp3);
            }
        }
        Ok(None) => assert!(matches!(end, Ok(None) | Err(_))),
        Err(_) => {}
    }
}

fn written_twice(frame: &Frame, resp3: bool) {
    let mut first = Reply::new(resp3);
    frame.write(&mut first);
    let (again, used) = read_frame(first.as_bytes()).expect("own replies are replies").expect("and whole");
    assert_eq!(used, first.len());
    let mut second = Reply::new(resp3);
    again.write(&mut second);
    assert_eq!(first.as_bytes(), second.as_bytes());
}
