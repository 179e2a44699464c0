use crate::Options;
pub fn run(_options: &Options) -> Result<Vec<String>, String> { Ok(Vec::new()) }
