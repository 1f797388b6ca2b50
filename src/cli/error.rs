//! How failures are worded: as kubectl words them, so that scripts and eyes find what they know.

use std::process::ExitCode;

use podwright_api::Status;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// What the server answered, and what was being done (`error when creating "x.yaml"`).
    Server { status: Status, doing: Option<String> },
    /// Anything wrong on this side.
    Client(String),
    /// Said already; only the exit code is left.
    Said(u8),
}

impl Failure {
    /// Something wrong on this side.
    pub fn usage(message: impl std::fmt::Display) -> Failure {
        Failure::Client(message.to_string())
    }

    pub fn doing(status: Status, doing: impl Into<String>) -> Failure {
        Failure::Server { status, doing: Some(doing.into()) }
    }

    /// The same failure, said of what was being done.
    pub fn while_doing(self, what: impl Into<String>) -> Failure {
        match self {
            Failure::Server { status, .. } => Failure::doing(status, what),
            other => other,
        }
    }

    /// Says it on standard error and gives the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Server { status, doing } => {
                let doing = doing.map(|d| format!("{d}: ")).unwrap_or_default();
                match (status.reason.as_str(), status.code) {
                    // Not an answer of a server at all: nobody listens there.
                    ("ServiceUnavailable", _) if status.message.starts_with("The connection to the server") => {
                        errln!("{} - did you specify the right socket?", status.message);
                    }
                    ("Invalid", _) if doing.is_empty() => errln!("The {}", invalid(&status)),
                    ("Invalid", _) => errln!("{doing}The {}", invalid(&status)),
                    ("", _) => errln!("Error from server: {doing}{}", status.message),
                    (reason, _) => errln!("Error from server ({reason}): {doing}{}", status.message),
                }
                ExitCode::FAILURE
            }
            Failure::Client(message) => {
                errln!("error: {message}");
                ExitCode::FAILURE
            }
            Failure::Said(code) => ExitCode::from(code),
        }
    }
}

/// `Pod "x" is invalid: ...`, each cause on a line of its own where there are several.
fn invalid(status: &Status) -> String {
    let details = status.details.clone().unwrap_or_default();
    let head = format!("{} \"{}\" is invalid: ", details.kind, details.name);
    let causes: Vec<String> = details.causes.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
    match causes.as_slice() {
        [] => status.message.clone(),
        [one] => head + one,
        many => many.iter().fold(head, |text, cause| text + "\n* " + cause),
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Server { status, doing: None }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Client(format!("{error:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Client(error.to_string())
    }
}
