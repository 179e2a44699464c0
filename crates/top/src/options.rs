//! The command lines of `evenkeel top` and `evenkeel stat`.

use crate::link::PATIENCE;
use clap::{ArgAction, ArgMatches, Parser};
use reach::{Address, End, Options, Server};
use std::time::Duration;

const ELSEWHERE: &[(&str, &str)] = &[("--to", "ADDRESS"), ("--server", "ADDRESS")];

/// Print a line each second about what a server does: Evenkeel, Redis or Valkey.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel stat",
    bin_name = "evenkeel stat",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Stat {
    /// The server: host:port, a URI as for -u, or the path of a unix socket [default: 127.0.0.1:6379]
    pub address: Option<String>,
    /// Seconds between two lines, 0.1 at least
    #[arg(long, short = 'i', default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// Lines after which to end (default: never)
    #[arg(long, short = 'c', value_name = "LINES")]
    pub count: Option<u64>,
    /// Print a JSON object for each line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Show what a server does, and who makes whom wait, on the whole screen: Evenkeel, Redis or Valkey.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "evenkeel top",
    bin_name = "evenkeel top",
    disable_version_flag = true,
    disable_help_flag = true
)]
pub struct Top {
    /// The server: host:port, a URI as for -u, or the path of a unix socket [default: 127.0.0.1:6379]
    pub address: Option<String>,
    /// Print what there is to see, once, and end; needs no terminal
    #[arg(long)]
    pub once: bool,
    /// With --once: print it as a JSON object
    #[arg(long, requires = "once")]
    pub json: bool,
    #[command(flatten)]
    pub server: Server,
    /// Print this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Stat {
    /// The server's address. Errors: files of passwords and TLS are wrong.
    pub fn place(&self) -> Result<Address, String> {
        end(&self.server, self.address.as_deref())?.address(PATIENCE)
    }

    /// The time between two lines.
    pub fn every(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }
}

impl Top {
    /// As [`Stat::place`].
    pub fn place(&self) -> Result<Address, String> {
        end(&self.server, self.address.as_deref())?.address(PATIENCE)
    }
}

fn end(server: &Server, address: Option<&str>) -> Result<End, String> {
    server.end(address.map(|word| ("ADDRESS", word)), "", "ADDRESS")
}

impl Options for Stat {
    const ELSEWHERE: &[(&'static str, &'static str)] = ELSEWHERE;

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.server.settle(matches)?;
        if !(0.1..=86_400.0).contains(&self.interval) {
            return Err("--interval takes 0.1 to 86400 seconds".to_owned());
        }
        end(&self.server, self.address.as_deref()).map(drop)
    }
}

impl Options for Top {
    const ELSEWHERE: &[(&'static str, &'static str)] = ELSEWHERE;

    fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
        self.server.settle(matches)?;
        end(&self.server, self.address.as_deref()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::ffi::OsString;

    fn stat(words: &str) -> Result<Stat, String> {
        let args: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        reach::read(&args).map_err(|e| e.to_string())
    }

    #[test]
    fn a_server_is_named_as_for_load_and_copy() {
        for (words, place) in [
            ("stat", "127.0.0.1:6379"),
            ("stat h:7", "h:7"),
            ("stat -h h -p 7 --interval 0.5 -c 2 --json", "h:7"),
            ("stat redis://ann:pw@h:7/3", "h:7"),
            ("stat /run/s", "/run/s"),
        ] {
            assert_eq!(
                stat(words).and_then(|stat| stat.place()).map(|place| place.server.place),
                Ok(place.into())
            );
        }
        for (words, why) in [
            ("stat a -h b", "ADDRESS and -h both name the server"),
            ("stat --interval 0", "0.1 to 86400"),
            ("stat --interval NaN", "0.1 to 86400"),
            ("stat --to h", "ADDRESS"),
        ] {
            let said = stat(words).expect_err(words);
            assert!(said.contains(why), "{words}: {said}");
        }
        Stat::command().debug_assert();
        Top::command().debug_assert();
    }
}
