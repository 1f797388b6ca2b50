//! `/flagz`: all flags of a process, set or not, without secrets.

use clap::{ArgMatches, Command};

/// Replaces a secret, as upstream.
const CLASSIFIED: &str = "CLASSIFIED";

/// The flags of the running command, sorted by name. A flag is a secret if its environment variable is.
pub fn told(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    let mut told: Vec<(String, String)> = command
        .get_arguments()
        .filter_map(|flag| {
            let name = flag.get_long().filter(|name| !matches!(*name, "help" | "version"))?;
            let values = matches.get_raw(flag.get_id().as_str()).into_iter().flatten();
            let shown = values.map(|value| value.to_string_lossy().replace('\n', " ")).collect::<Vec<_>>().join(",");
            let value = if flag.is_hide_env_values_set() && !shown.is_empty() { CLASSIFIED.to_owned() } else { shown };
            Some((name.to_owned(), value))
        })
        .collect();
    told.sort();
    told
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    #[test]
    fn secrets_are_not_told_and_what_was_not_given_is() {
        let run = Command::new("run")
            .arg(Arg::new("token").long("token").env("NO_SUCH_VARIABLE").hide_env_values(true))
            .arg(Arg::new("other").long("other-token").env("NO_SUCH_VARIABLE").hide_env_values(true))
            .arg(Arg::new("of").long("of").value_delimiter(','))
            .arg(Arg::new("usual").long("usual").default_value("7"))
            .arg(Arg::new("all").long("all").action(ArgAction::SetTrue));
        let command = Command::new("x").subcommand(run);
        let matches = command.clone().get_matches_from(["x", "run", "--token", "abc", "--of", "a,b"]);
        let told = told(&command, &matches);
        let told: Vec<String> = told.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(told, ["all=false", "of=a,b", "other-token=", "token=CLASSIFIED", "usual=7"]);
    }
}
