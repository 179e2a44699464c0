//! Server CPU time per GET over TLS, beside the same without.
//!
//! The figure is that of [`crate::throughput`]: on-CPU time of all threads over the requests, medians of
//! rounds in which servers, and TLS and plain RESP, take turns. Hands are shaken before a round is counted. One
//! client speaks to all servers, so all agree on the same version and, if they have it, the same cipher.

use crate::load::Load;
use crate::report::{Section, Table, absent, median};
use crate::secure;
use crate::server::{Door, Server, Target, WITHOUT_TLS};
use crate::throughput::{self, Connect, Options, Round};
use std::io;

const GOAL: f64 = 0.85;
const SUBJECT: &str = "Evenkeel";
const PEER: &str = "Valkey";

pub fn run(targets: &[Target], options: &Options) -> Section {
    let mut section = Section::new("Server CPU time per GET over TLS");
    let mut servers = Vec::new();
    for target in targets {
        let started = Server::start(&target.at(Door::Tls));
        match started.and_then(|server| Ok((cipher(&server).map_err(|e| e.to_string())?, server))) {
            Ok((cipher, server)) => {
                section.note(format!("{}: {cipher}", server.label));
                servers.push(server);
            }
            Err(error) if error.contains(WITHOUT_TLS) => {
                section.note(format!("{} is built without TLS", target.label));
            }
            Err(error) => section.note(error),
        }
    }
    match table(&servers, options) {
        Ok(table) => section.table(
            format!(
                "{} connections: CPU µs per GET (thousand requests/s), medians of {} rounds; goal ≤ {GOAL} × {PEER}, over TLS",
                options.conns, options.rounds
            ),
            table,
        ),
        Err(error) => section.note(error.to_string()),
    }
    section
}

/// The version and cipher that a server agrees to.
fn cipher(server: &Server) -> io::Result<String> {
    let (_, session) = secure::connect(server.tls_port, &secure::config(None)?)?;
    let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
    Ok(format!("{:?}, {:?}", session.protocol_version(), suite).replace(['(', ')'], "").replace("Some", ""))
}

/// Medians of CPU µs per GET and of requests/s.
type Cell = (f64, f64);

fn table(servers: &[Server], options: &Options) -> io::Result<Table> {
    let mut head = vec!["pipeline".to_string()];
    head.extend(servers.iter().map(|server| server.label.clone()));
    head.extend([format!("{SUBJECT}/{PEER}"), "goal".to_string()]);
    head.extend(servers.iter().map(|server| format!("{}, plain", server.label)));
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    let place = |label: &str| servers.iter().position(|server| server.label == label);
    for pipeline in [1, 16] {
        let [secured, plain] = cells(servers, options, pipeline)?;
        let show = |&(us, rate): &Cell| format!("{us:.2} ({:.0}k)", rate / 1e3);
        let mut row = vec![pipeline.to_string()];
        row.extend(secured.iter().map(show));
        match place(SUBJECT).zip(place(PEER)) {
            Some((subject, peer)) => {
                let ratio = secured[subject].0 / secured[peer].0;
                row.push(format!("{ratio:.2}"));
                row.push(if ratio <= GOAL { "met" } else { "missed" }.to_string());
            }
            None => row.extend([absent(), absent()]),
        }
        row.extend(plain.iter().map(show));
        table.row(row);
    }
    Ok(table)
}

/// The figures of each server: over TLS, and plain.
fn cells(servers: &[Server], options: &Options, pipeline: usize) -> io::Result<[Vec<Cell>; 2]> {
    let config = secure::config(None)?;
    let secured =
        |server: &Server, conns: usize| Load::open(conns, 1, || secure::link(server.tls_port, &config));
    let ways: [Connect; 2] = [&secured, &throughput::plain];
    let requests = if pipeline == 1 { options.requests } else { options.requests * 10 };
    let mut rounds = ways.map(|_| vec![(Vec::new(), Vec::new()); servers.len()]);
    for round in 0..options.rounds {
        for (i, server) in servers.iter().enumerate() {
            for (rounds, connect) in rounds.iter_mut().zip(ways) {
                let size = Round { conns: options.conns, pipeline, requests, warm: round == 0 };
                let (us, rate) = throughput::get_round(server, &size, connect)?;
                rounds[i].0.push(us);
                rounds[i].1.push(rate);
            }
        }
    }
    let medians = |(mut us, mut rates): (Vec<f64>, Vec<f64>)| (median(&mut us), median(&mut rates));
    Ok(rounds.map(|of_servers| of_servers.into_iter().map(medians).collect()))
}
