//! Data that one connection has sent and that is not consumed yet: parts that come and go in any order, on its user's account.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::BodyBytes;

/// The overhead of a part, which counts however short it is.
const LEAST: usize = 256;

/// The account of one connection.
pub(crate) struct Account {
    taken: Mutex<BodyBytes>,
    lost: CancellationToken,
    /// How long a part may take to arrive.
    pub patience: Duration,
}

/// One part, released when dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Account {
    pub fn new(taken: BodyBytes, patience: Duration) -> Arc<Account> {
        Arc::new(Account { lost: taken.lost(), taken: Mutex::new(taken), patience })
    }

    /// Reserves room for a part; an error if its user has none left, or the connection made room for others.
    pub fn charge(self: &Arc<Account>, bytes: usize) -> io::Result<Charge> {
        let bytes = bytes.max(LEAST);
        match self.change(|taken| taken.more(bytes)) {
            true => Ok(Charge { account: self.clone(), bytes }),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// Cancelled when the connection has made room for others and must end.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    fn change<T>(&self, change: impl FnOnce(&mut BodyBytes) -> T) -> T {
        // Each change is atomic: the state stays consistent after a panic.
        change(&mut self.taken.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.change(|taken| taken.less(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bodies, Limits};
    use super::*;
    use podwright_api::User;

    #[test]
    fn parts_come_and_go_in_any_order_on_one_account() {
        let limits = Limits { bodies: 4 * LEAST, bodies_of_one: 3 * LEAST, ..Limits::default() };
        let bodies = Bodies::new(&limits);
        let of = |name: &str| Account::new(bodies.of(&User::new(name, Vec::<String>::new())), limits.body);
        let (one, same) = (of("a"), of("a"));
        let first = one.charge(1).unwrap();
        let second = one.charge(2 * LEAST).unwrap();
        assert_eq!(same.charge(1).map(drop).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        drop(first);
        let third = same.charge(1).unwrap();
        assert!(of("b").charge(LEAST).is_ok() && !one.lost().is_cancelled());
        let other = of("b").charge(2 * LEAST).unwrap();
        assert!(one.lost().is_cancelled() && !same.lost().is_cancelled(), "the oldest of who has most");
        assert!(one.charge(1).is_err(), "it does not go on");
        // Dropping ended ones releases nothing further.
        drop((second, third, other));
        let all = [of("c").charge(3 * LEAST), of("d").charge(LEAST)];
        assert!(all.iter().all(Result::is_ok));
    }
}
