//! How long the expressions about a request may hold whoever evaluates them: few steps are taken at once, where everybody waits. What
//! takes more is begun anew in the turns of large requests, and lets others go first between two expressions. (No estimate says which
//! it is: what expressions see has no schema, so that each that goes through a list may take as long as one may at all.)

use crate::admission::review::Review;
use crate::large::{AT_ONCE, LARGE, give_way};
use podwright_api::Status;
use podwright_api::cel::{Budget, SharedBudget};

/// Why there is no outcome.
pub enum Halt {
    /// It takes more steps than are taken at once.
    Long,
    Refused(Status),
}

impl From<Status> for Halt {
    fn from(why: Status) -> Halt {
        Halt::Refused(why)
    }
}

/// See the module.
pub enum Pace {
    /// So many steps are left.
    AtOnce(u64),
    InTurns,
}

impl Pace {
    /// Of a budget what may be spent at this pace.
    pub fn budget(&self, whole: Budget) -> SharedBudget {
        SharedBudget::new(match self {
            Pace::AtOnce(left) => whole.at_most(*left),
            Pace::InTurns => whole,
        })
    }

    /// Counts what a budget has paid for, which had so many steps at first.
    pub fn took(&mut self, given: u64, budget: &SharedBudget) -> Result<(), Halt> {
        self.take(given - budget.left())
    }

    /// Counts steps. None are left of those that are taken at once: what came of the last may be cut short.
    pub fn take(&mut self, steps: u64) -> Result<(), Halt> {
        if let Pace::AtOnce(left) = self {
            *left = left.saturating_sub(steps);
            if *left == 0 {
                return Err(Halt::Long);
            }
        }
        Ok(())
    }

    pub async fn rest(&self) {
        if matches!(self, Pace::InTurns) {
            give_way().await;
        }
    }
}

/// Decides something about a request: at once, or, where that takes long, in turns.
///
/// # Errors
/// What refuses the request.
pub async fn paced<T, F: Future<Output = Result<T, Halt>>>(
    review: &Review<'_>,
    decide: impl Fn(Pace) -> F,
) -> Result<T, Status> {
    let decided = match decide(Pace::AtOnce(AT_ONCE)).await {
        Err(Halt::Long) => {
            let (large, user) = (&review.server.large, &review.call.user);
            large.part(user, LARGE, |_| decide(Pace::InTurns)).await?
        }
        decided => decided,
    };
    decided.map_err(|why| match why {
        Halt::Refused(why) => why,
        Halt::Long => Status::internal("what is decided in turns has no end"),
    })
}
