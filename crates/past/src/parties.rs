//! The names of those that work and wait, as the history keeps them.
//!
//! A client is known by its CLIENT SETNAME, else by its library and its address without the port: ports change
//! with each connection. The work that took a processor is never that of the client that was just served.

use history::pairs::Total;
use history::{Edge, Flows, Kind, Party};
use observe::ClientInfo;
use observe::waits::{Culprit, Wait, What};
use std::collections::HashSet;

/// The label of a client.
pub fn label(client: &ClientInfo) -> Vec<u8> {
    let text = client.text.lock();
    if !text.name.is_empty() {
        return text.name.clone();
    }
    let host = client.address.rsplit_once(':').map_or(&*client.address, |(host, _)| host);
    match text.lib_name.is_empty() {
        true => host.as_bytes().to_vec(),
        false => [&text.lib_name, &b" "[..], host.as_bytes()].concat(),
    }
}

/// A client as a party, with the command and the words that it ran.
pub fn of_client(client: &ClientInfo, command: &str, words: &[Vec<u8>]) -> Party {
    Party {
        kind: Kind::Client,
        name: label(client),
        client: client.id,
        address: client.address.clone().into_bytes(),
        user: client.text.lock().user.clone(),
        command: command.into(),
        words: words.to_vec(),
    }
}

/// The culprit of a wait.
pub fn of_culprit(what: What, culprit: Option<&Culprit>) -> Party {
    let Some(culprit) = culprit else {
        let (kind, name) = match what {
            What::Source => (Kind::Source, "a source"),
            What::Log => (Kind::Disk, "the log's disk"),
            What::Pause => (Kind::Pause, "CLIENT PAUSE"),
            What::Os => (Kind::Program, UNKNOWN_PROGRAM),
            What::Crowd => (Kind::Crowd, CROWD),
            _ => (Kind::Unknown, "unknown"),
        };
        return Party::other(kind, name);
    };
    match what {
        What::Os => match culprit.neighbours().first() {
            Some(program) => {
                let sentence = if program.pid == 0 { String::new() } else { format!("pid {}", program.pid) };
                Party { command: sentence.into_bytes(), ..Party::other(Kind::Program, &program.name) }
            }
            None => Party::other(Kind::Program, UNKNOWN_PROGRAM),
        },
        What::Crowd => Party::other(Kind::Crowd, CROWD),
        What::Log => Party::other(Kind::Disk, culprit.command),
        _ => match &culprit.client {
            Some(client) => {
                let kind = if what == What::Replica { Kind::Replica } else { Kind::Client };
                Party { kind, ..of_client(client, culprit.command, &culprit.words) }
            }
            None if what == What::Replica => Party::other(Kind::Replica, culprit.command),
            None if what == What::Unknown => Party::other(Kind::Unknown, "unknown"),
            None => Party::other(Kind::Server, culprit.command),
        },
    }
}

const UNKNOWN_PROGRAM: &str = "another program, unknown";
const CROWD: &str = "many short requests";

/// The edges of a second's waits. O(pairs · edges)
pub fn edges(pairs: impl Iterator<Item = (Total, Wait)>) -> Flows {
    let (mut flows, mut clients) = (Flows::default(), HashSet::new());
    for (sum, longest) in pairs {
        let edge = Edge {
            cause: longest.what as u8,
            culprit: of_culprit(longest.what, longest.culprit.as_deref()),
            waiter: of_client(&longest.client, longest.command, &[]),
            clients: 1,
            waits: sum.waits,
            us: sum.ns / 1000,
            longest_us: sum.max_ns / 1000,
        };
        let at = flows.add(&edge);
        if clients.insert((at, longest.client.id)) {
            flows.edges[at].clients = clients.iter().filter(|(edge, _)| *edge == at).count() as u64;
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use observe::waits::Neighbour;
    use std::sync::Arc;

    fn client(id: u64, name: &str) -> Arc<ClientInfo> {
        let client = ClientInfo::new(id, 0, format!("10.0.0.{id}:4711"), String::new(), 3, false, 0);
        client.text.lock().name = name.into();
        Arc::new(client)
    }

    fn pair(what: What, culprit: Option<Culprit>, client: Arc<ClientInfo>) -> (Total, Wait) {
        let culprit = culprit.map(Arc::new);
        let longest = Wait { id: 1, unix_ms: 1, client, command: "get", what, ns: 4_000_000, culprit };
        (Total { waits: 2, ns: 6_000_000, max_ns: 4_000_000 }, longest)
    }

    #[test]
    fn a_client_without_a_name_is_its_library_and_address() {
        let client = client(7, "");
        assert_eq!(label(&client), b"10.0.0.7");
        client.text.lock().lib_name = b"redis-py".to_vec();
        assert_eq!(label(&client), b"redis-py 10.0.0.7");
        client.text.lock().name = b"shop".to_vec();
        assert_eq!(label(&client), b"shop");
    }

    #[test]
    fn who_took_the_processor_is_the_program_and_never_who_was_served() {
        let served = Culprit::of((What::Os, 5_000_000), Some(client(3, "filter-service")), "eval");
        assert_eq!(of_culprit(What::Os, Some(&served)).name, b"another program, unknown");
        let _ = served.ran.set(Box::new([Neighbour { name: "pg_dump".into(), pid: 8121, ns: 4_000_000 }]));
        let party = of_culprit(What::Os, Some(&served));
        assert_eq!((party.kind, &party.name[..], party.client), (Kind::Program, &b"pg_dump"[..], 0));
        assert_eq!(party.command, b"pid 8121");
        let held = of_culprit(What::Lock, Some(&served));
        assert_eq!((held.kind, &held.name[..]), (Kind::Client, &b"filter-service"[..]));
        let own = Culprit::of((What::Loop, 5), None, "housekeeping");
        assert_eq!(of_culprit(What::Loop, Some(&own)).kind, Kind::Server);
    }

    #[test]
    fn clients_of_one_name_are_one_side_of_an_edge() {
        let batch = || Some(Culprit::of((What::Commit, 5), Some(client(9, "batch")), "eval"));
        let pairs = [1, 2, 3].map(|id| pair(What::Commit, batch(), client(id, "shop")));
        let flows = edges(pairs.into_iter().chain([pair(What::Commit, batch(), client(4, "cart"))]));
        assert_eq!(flows.edges.len(), 2);
        let shop = &flows.edges[0];
        assert_eq!((shop.clients, shop.waits, shop.us, shop.longest_us), (3, 6, 18_000, 4000));
        assert_eq!((&shop.culprit.name[..], &shop.waiter.command[..]), (&b"batch"[..], &b"get"[..]));
    }
}
