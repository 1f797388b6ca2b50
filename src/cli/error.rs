//! Error messages in kubectl's words, familiar to scripts and users.

use std::process::ExitCode;

use podwright_api::Status;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The server's error, and what was being done (`error when creating "x.yaml"`).
    Server { status: Status, doing: Option<String> },
    /// Any error on the client side.
    Client(String),
    /// Already reported; only the exit code is left.
    Said(u8),
}

impl Failure {
    /// An error on the client side.
    pub fn usage(message: impl std::fmt::Display) -> Failure {
        Failure::Client(message.to_string())
    }

    pub fn doing(status: Status, doing: impl Into<String>) -> Failure {
        Failure::Server { status, doing: Some(doing.into()) }
    }

    /// Adds what was being done.
    pub fn while_doing(self, what: impl Into<String>) -> Failure {
        match self {
            Failure::Server { status, .. } => Failure::doing(status, what),
            other => other,
        }
    }

    /// The same for who words failures of other sorts, too.
    pub fn into_error(self) -> anyhow::Error {
        let words = self.words().unwrap_or_else(|| "it failed".to_owned());
        anyhow::Error::msg(words.strip_prefix("error: ").map(str::to_owned).unwrap_or(words))
    }

    /// Says it on standard error and gives the exit code.
    pub fn report(self) -> ExitCode {
        if let Some(words) = self.words() {
            errln!("{words}");
        }
        match self {
            Failure::Server { .. } | Failure::Client(_) => ExitCode::FAILURE,
            Failure::Said(code) => ExitCode::from(code),
        }
    }

    /// The message, unless already reported.
    fn words(&self) -> Option<String> {
        let (status, doing) = match self {
            Failure::Server { status, doing } => (status, doing.as_ref().map(|d| format!("{d}: ")).unwrap_or_default()),
            Failure::Client(message) => return Some(format!("error: {message}")),
            Failure::Said(_) => return None,
        };
        Some(match status.reason.as_str() {
            // Not a server's response: nothing listens there.
            "ServiceUnavailable" if status.unanswered => {
                format!("{} - did you specify the right socket?", status.message)
            }
            "Invalid" => format!("{doing}The {}", invalid(status)),
            "" => format!("Error from server: {doing}{}", status.message),
            reason => format!("Error from server ({reason}): {doing}{}", status.message),
        })
    }
}

/// `Pod "x" is invalid: ...`, with several causes on lines of their own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_answer_is_told_apart_from_who_is_refused() {
        let said = |status: Status| Failure::doing(status, "x").words().expect("words");
        let why = "The connection to the server x was refused: y";
        let nobody = Status::unavailable(why).unanswered();
        assert_eq!(said(nobody), format!("{why} - did you specify the right socket?"));
        // A server may report the same of another one.
        assert_eq!(said(Status::unavailable(why)), format!("Error from server (ServiceUnavailable): x: {why}"));
    }
}
