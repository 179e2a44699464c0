//! `evenkeel top --once`: what the screen would show, printed, as text or as JSON.

use crate::model::{Client, Model};
use crate::moment::Edge;
use crate::options::Top;
use crate::poll::{self, News};
use crate::stat::{Second, say};
use crate::views::View;
use serde_json::{Value, json};

/// Lines of a list that are printed.
const ROWS: usize = 20;
/// Columns of a line; the last one of a list has what is left.
const WIDTH: usize = 160;

/// Asks for a second, and prints. Errors: no connection; wrong files of passwords and TLS; the server tells
/// nothing.
pub fn run(options: &Top) -> Result<(), String> {
    let address = options.place()?;
    let mut model = Model::new(address.server.place.clone());
    for replies in poll::once(address)? {
        model.take(News::Replies(replies));
    }
    if !second(&model).tells_anything() {
        let why = model.refused.values().next().map_or("INFO has no figures", String::as_str);
        return Err(format!("{}: {why}", model.place));
    }
    say(&if options.json { format!("{:#}", object(&model)) } else { page(&model) });
    Ok(())
}

/// The figures of the last second, as `evenkeel stat` has them.
fn second(model: &Model) -> Second {
    let mut pings: Vec<u64> = model.pings.iter().copied().collect();
    pings.sort_unstable();
    Second {
        unix_ms: model.unix_ms,
        moment: model.moment.clone(),
        rates: model.rates,
        heat: model.moment.now.as_ref().map(|now| now.second),
        pings,
        slow: model.lately().max_by_key(|slow| slow.us).cloned(),
    }
}

/// The texts of the screen, without its picture.
fn page(model: &Model) -> String {
    let mut lines = vec![model.title(), model.sentence().0];
    lines.extend(model.figures().into_iter().map(|(name, said)| format!("{name:<9}{said}")));
    for view in View::ALL {
        let mut table = view.table(model);
        table.arrange("", 0);
        lines.push(String::new());
        lines.push(format!("{}, {} by {}", view.name(), table.rows.len(), table.orders[0]));
        if table.rows.is_empty() {
            lines.push(format!("  {}", table.empty));
            continue;
        }
        let rows = table.rows.iter().take(ROWS).map(|row| row.cells.as_slice());
        let lines_of = std::iter::once(table.head()).chain(rows.map(<[String]>::to_vec));
        lines.extend(lines_of.map(|cells| format!("  {}", table.line(&cells, WIDTH)).trim_end().to_owned()));
    }
    lines.join("\n")
}

/// The object of `evenkeel stat --json`, and the lists.
fn object(model: &Model) -> Value {
    let mut object = second(model).json();
    let (sentence, is_alarm) = model.sentence();
    object["address"] = json!(model.place);
    object["version"] = json!(model.program().version(&model.moment.info));
    object["sentence"] = json!(sentence);
    object["is_alarm"] = json!(is_alarm);
    object["waits"] = model.edges().unwrap_or_default().iter().map(edge).collect();
    object["clients"] = model.clients.iter().map(|one| client(model, one)).collect();
    let commands = model.commands.iter().map(|one| {
        json!({"name": one.name, "calls_per_s": one.calls, "us_per_s": one.us, "calls": one.all_calls, "failed": one.failed})
    });
    object["commands"] = commands.collect();
    let slow = model.slow.iter().map(|one| {
        json!({"id": one.id, "time_s": one.unix_s, "us": one.us, "client": one.client(), "words": one.words})
    });
    object["slow_log"] = slow.collect();
    let causes = model.moment.now.iter().flat_map(|now| &now.waits);
    object["waits_of_a_minute"] =
        causes.map(|(cause, n, us)| json!({"for": cause, "waits": n, "us": us})).collect();
    let events = model.events.iter().map(|(name, unix_s, last_ms, longest_ms)| {
        json!({"name": name, "time_s": unix_s, "last_ms": last_ms, "longest_ms": longest_ms})
    });
    object["events"] = events.collect();
    let keys = model.hot_keys.iter().flat_map(|hot| &hot.keys);
    object["hot_keys"] =
        keys.map(|(key, [us, bytes])| json!({"key": key, "us": us, "net_bytes": bytes})).collect();
    let refused = model.refused.iter().map(|(ask, why)| (ask.name().to_owned(), json!(why)));
    object["refused"] = Value::Object(refused.collect());
    object
}

fn edge(edge: &Edge) -> Value {
    json!({
        "culprit": edge.culprit.label(), "command": edge.culprit.command, "waiter": edge.waiter.label(),
        "clients": edge.waiter.clients, "for": edge.cause, "waits": edge.waits, "us": edge.us,
        "longest_us": edge.longest_us,
    })
}

fn client(model: &Model, client: &Client) -> Value {
    let heavy = model.moment.now.iter().flat_map(|now| &now.heaviest);
    let us = crate::reply::sum(heavy.filter(|one| one.client.client == client.id).map(|one| one.us));
    json!({
        "id": client.id, "name": client.text("name"), "address": client.text("addr"), "user": client.text("user"),
        "command": client.text("cmd"), "cpu_us_of_a_minute": us, "ops": client.rates[0],
        "input_bytes": client.rates[1], "output_bytes": client.rates[2], "memory": client.number("tot-mem"),
        "idle_s": client.number("idle"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{evenkeel, redis};

    #[test]
    fn the_object_has_the_figures_and_every_list() {
        let object = object(&evenkeel(b"billing\x1b[2J", "billing-export"));
        assert_eq!((object["server"].as_str(), object["ops"].as_f64()), (Some("evenkeel"), Some(12_345.0)));
        assert_eq!(object["waits"][0]["culprit"], "billing\\x1b[2J");
        assert_eq!(object["clients"][0]["cpu_us_of_a_minute"], 21_000_000);
        assert_eq!(object["commands"][0]["name"], "eval");
        assert_eq!(object["slow_log"][0]["us"], 48_213);
        assert_eq!(object["hot_keys"][0], json!({"key": "session:\\x1b", "us": 900, "net_bytes": null}));
        assert_eq!(object["is_alarm"], true);
        assert_eq!(self::object(&redis())["refused"]["EVENKEEL NOW"], "ERR unknown command 'EVENKEEL'");
    }

    #[test]
    fn the_page_names_every_list_and_is_plain_text() {
        for model in [evenkeel(b"billing\x1b[2J", "billing\x1b[2J"), redis()] {
            let page = page(&model);
            assert!(page.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{page}");
            for view in View::ALL {
                assert!(page.contains(&format!("\n{}, ", view.name())), "{page}");
            }
        }
    }
}
