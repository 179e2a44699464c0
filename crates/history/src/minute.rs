//! The running minute, and what it becomes when it is over.

use crate::codec::{Reader, Writer};
use crate::event::{HEAVY, read_list, write_list};
use crate::row::{Names, Row, Rows, read_rows, write_rows};
use crate::{Flows, Heavy, Mark, Record};
use std::sync::Arc;

/// Records of one minute; the longest are kept.
const RECORDS: usize = 128;
/// The last minute that is believed, some thousands of years from now.
const MINUTE_MAX: usize = u32::MAX as usize;
/// Heavy clients that are counted within a minute.
const COUNTED: usize = 64;

/// All of one second.
#[derive(Clone, Debug)]
pub struct Second {
    pub unix_s: u64,
    pub row: Row,
    pub flows: Flows,
    pub heavy: Vec<Heavy>,
    pub records: Vec<Record>,
    pub marks: Vec<Mark>,
}

/// The minute that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    /// Minutes since 1970.
    pub minute: u64,
    pub rows: Rows,
    pub sum: Option<(Row, u64)>,
    pub flows: Flows,
    pub heavy: Vec<Heavy>,
    pub records: Vec<Record>,
    pub marks: Vec<Mark>,
}

/// A minute that is over, as bytes: a share of each is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub minute: u64,
    pub seconds: Arc<[u8]>,
    pub count: u8,
    pub sum: Arc<[u8]>,
    pub flows: Arc<[u8]>,
    pub records: Arc<[u8]>,
    pub marks: Vec<Mark>,
}

impl Running {
    pub fn new(minute: u64) -> Running {
        Running {
            minute,
            rows: Rows::new(),
            sum: None,
            flows: Flows::default(),
            heavy: Vec::new(),
            records: Vec::new(),
            marks: Vec::new(),
        }
    }

    pub fn add(&mut self, second: &Second, names: &Names) {
        let at = (second.unix_s % 60) as u8;
        // A clock that was set back comes by a second twice. A change of the loops' number is a restart.
        let fits = self.rows.last().is_none_or(|(before, row)| *before < at && row.shape == second.row.shape);
        if fits {
            self.rows.push((at, second.row.clone()));
        }
        match &mut self.sum {
            Some((sum, seconds)) => {
                sum.add(&second.row, names, (*seconds, 1));
                *seconds += 1;
            }
            None => self.sum = Some((second.row.clone(), 1)),
        }
        self.flows.add_all(&second.flows);
        if self.flows.edges.len() > 4 * crate::event::EDGES {
            self.flows.keep(2 * crate::event::EDGES);
        }
        add_heavy(&mut self.heavy, &second.heavy, COUNTED);
        self.records.extend(second.records.iter().cloned());
        if self.records.len() > RECORDS {
            self.records.sort_by_key(|record| std::cmp::Reverse(record.us));
            self.records.truncate(RECORDS);
        }
        self.marks.extend(second.marks.iter().cloned());
    }

    pub fn seal(mut self) -> Sealed {
        let (mut seconds, mut sum, mut flows, mut records) =
            (Writer::default(), Writer::default(), Writer::default(), Writer::default());
        if let Some((_, first)) = self.rows.first() {
            write_rows(&self.rows, first.shape, &mut seconds);
        }
        if let Some((row, _)) = self.sum {
            let shape = row.shape;
            write_rows(&vec![(0, row)], shape, &mut sum);
        }
        self.flows.write(&mut flows);
        self.heavy.truncate(HEAVY);
        write_list(&self.heavy, &mut flows, Heavy::write);
        self.records.sort_by_key(|record| record.id);
        write_list(&self.records, &mut records, Record::write);
        Sealed {
            minute: self.minute,
            count: self.rows.len() as u8,
            seconds: seconds.into_bytes().into(),
            sum: sum.into_bytes().into(),
            flows: flows.into_bytes().into(),
            records: if self.records.is_empty() { Arc::default() } else { records.into_bytes().into() },
            marks: self.marks,
        }
    }
}

/// Adds times of clients by their names, and keeps the `max` with the most, in order.
pub(crate) fn add_heavy(sums: &mut Vec<Heavy>, more: &[Heavy], max: usize) {
    for heavy in more {
        match sums.iter_mut().find(|one| one.client.name == heavy.client.name) {
            Some(one) => {
                if heavy.us > one.us {
                    one.client = heavy.client.clone();
                }
                one.us = one.us.saturating_add(heavy.us);
                one.error_us = one.error_us.saturating_add(heavy.error_us);
                one.pieces = one.pieces.saturating_add(heavy.pieces);
            }
            None => sums.push(heavy.clone()),
        }
    }
    sums.sort_by_key(|one| std::cmp::Reverse(one.us));
    sums.truncate(max);
}

impl Sealed {
    /// The seconds; None: they were damaged.
    pub fn rows(bytes: &[u8]) -> Option<Rows> {
        if bytes.is_empty() { Some(Rows::new()) } else { read_rows(&mut Reader::new(bytes)) }
    }

    /// The edges and the heaviest clients.
    pub fn flows(bytes: &[u8]) -> Option<(Flows, Vec<Heavy>)> {
        let mut bytes = Reader::new(bytes);
        Some((Flows::read(&mut bytes)?, read_list(&mut bytes, Heavy::read)?))
    }

    pub fn records(bytes: &[u8]) -> Option<Vec<Record>> {
        if bytes.is_empty() { Some(Vec::new()) } else { read_list(&mut Reader::new(bytes), Record::read) }
    }

    /// Writes all of it, or only the sum.
    pub fn write(&self, whole: bool) -> Vec<u8> {
        let mut out = Writer::default();
        out.number(self.minute);
        out.text(&self.sum, usize::MAX);
        if whole {
            [&self.seconds, &self.flows, &self.records].iter().for_each(|part| out.text(part, usize::MAX));
            write_list(&self.marks, &mut out, Mark::write);
        }
        out.into_bytes()
    }

    /// Reads what [`Sealed::write`] wrote, and checks all parts once.
    pub fn read(bytes: &[u8]) -> Option<Sealed> {
        let mut bytes = Reader::new(bytes);
        let (minute, sum) = (bytes.count(MINUTE_MAX)? as u64, bytes.text()?);
        Sealed::rows(sum)?;
        let is_whole = !bytes.is_empty();
        let [seconds, flows, records]: [&[u8]; 3] =
            if is_whole { [bytes.text()?, bytes.text()?, bytes.text()?] } else { [&[], &[], &[]] };
        let marks = if is_whole { read_list(&mut bytes, Mark::read)? } else { Vec::new() };
        let count = Sealed::rows(seconds)?.len() as u8;
        if !flows.is_empty() {
            Sealed::flows(flows)?;
        }
        Sealed::records(records)?;
        let [seconds, sum, flows, records] = [seconds, sum, flows, records].map(Arc::from);
        Some(Sealed { minute, seconds, count, sum, flows, records, marks })
    }
}
